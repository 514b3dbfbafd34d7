"""Promises of a whole worker process that nothing disturbs: documents in, vectors searchable."""

from support.fake_provider import FakeProvider
from support.site import Site


def test_a_worker_registers_claims_and_indexes_txt_md_and_html(real_site: Site) -> None:
    jobs = [
        real_site.ingest("The heron stands in the water."),
        real_site.ingest("# Birds\n\nA heron fishes.\n\n## Nests\n\nHigh in the trees.", suffix=".md"),
        real_site.ingest("<html><title>Birds</title><h1>Herons</h1><p>They fish.</p></html>", suffix=".html"),
    ]
    real_site.start()
    real_site.wait_indexed(*jobs)
