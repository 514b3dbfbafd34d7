"""Promises of a whole worker process that nobody disturbs: documents in, vectors searchable."""

from docgrid_core.jobs import JobStatus
from docgrid_core.settings import EmbeddingSettings
from docgrid_core.store import control, documents, models, search
from docgrid_pipeline.embeddings import Purpose, build_provider
from support import tables
from support.fake_provider import FakeProvider
from support.site import Site

MARKDOWN = "# Birds\n\nA heron waits in the shallow water.\n\n## Kilns\n\nClay is fired in a kiln.\n"
HTML = "<html><title>Ships</title><body><h1>Harbour</h1><p>The ship leaves the harbour.</p></body></html>"


def test_txt_md_and_html_are_indexed_and_found_by_what_they_say(real_site: Site) -> None:
    jobs = [
        real_site.ingest("The glacier moves slowly down the mountain."),
        real_site.ingest(MARKDOWN, suffix=".md"),
        real_site.ingest(HTML, suffix=".html"),
    ]
    real_site.start()
    real_site.wait_indexed(*jobs)
    provider = build_provider(EmbeddingSettings(provider="builtin"), models.active_model(real_site.db))

    def best(question: str) -> str:
        (vector,) = provider.embed([question], purpose=Purpose.QUERY)
        model = models.active_model(real_site.db)
        return search.search(real_site.db, model, vector.tolist(), top_k=1)[0].chunk_text

    assert "glacier" in best("ice on a mountain")
    assert "kiln" in best("pottery and clay")
    assert "harbour" in best("a vessel at sea")


def test_a_broken_document_fails_alone_with_its_code(site: Site) -> None:
    broken = site.ingest(b"caf\xe9")
    blank = site.ingest(" \n\t ")
    whole = [site.ingest(f"whole {number}") for number in range(3)]
    site.start()
    site.wait_indexed(*whole)
    site.wait_for(broken, JobStatus.FAILED)
    site.wait_for(blank, JobStatus.FAILED)
    for job_id, code in ((broken, "DOCUMENT-PARSING-003"), (blank, "DOCUMENT-PARSING-002")):
        (attempt,) = tables.attempts(site.db, job_id)
        assert (attempt.failure_type, attempt.error_code) == ("DOCUMENT_CONTENT_INVALID", code)
        assert tables.job(site.db, job_id).retry_count == 0


def test_a_version_stays_searchable_when_a_newer_one_is_broken(site: Site) -> None:
    site.start()
    site.wait_indexed(site.ingest("good", name="report"))
    broken = site.ingest(b"b\xe4d", name="report")
    site.wait_for(broken, JobStatus.FAILED)
    assert site.find("good") == ["good"]
    assert tables.document(site.db, broken).status == "INDEXED"


def test_the_old_version_is_found_until_the_switch_then_only_the_new(
    site: Site, provider: FakeProvider
) -> None:
    site.start()
    site.wait_indexed(site.ingest("old", name="report"))
    provider.gate.clear()
    job_id = site.ingest("new", name="report")
    provider.wait_for_requests(2)
    assert site.find("new") == ["old"]
    provider.gate.set()
    site.wait_indexed(job_id)
    assert site.find("old") == ["new"]


def test_what_was_embedded_for_a_deleted_or_canceled_document_is_discarded_case_27(
    site: Site, provider: FakeProvider
) -> None:
    provider.gate.clear()
    deleted, canceled = site.ingest("deleted"), site.ingest("canceled")
    worker = site.start()
    provider.wait_for_requests(2)
    documents.delete(site.db, tables.document(site.db, deleted).id, reason="", by="test")
    control.cancel(site.db, canceled, reason="", by="test")
    provider.gate.set()
    worker.wait_for_line("execution ended", count=2)
    for job_id in (deleted, canceled):
        assert site.status(job_id) == "CANCELED"
        assert tables.vectors(site.db, job_id) == {}
        assert [attempt.status for attempt in tables.attempts(site.db, job_id)] == ["RELEASED"]


def test_a_superseded_version_is_given_up_and_the_newer_one_indexed(
    site: Site, provider: FakeProvider
) -> None:
    provider.gate.clear()
    first = site.ingest("first", name="report")
    site.start()
    provider.wait_for_requests(1)
    second = documents.register(site.db, site.source("second", name="report"), supersede=True).job_id
    assert second is not None
    provider.gate.set()
    site.wait_indexed(second)
    assert site.status(first) == "CANCELED"
    assert site.find("second") == ["second"]


def test_a_version_that_turns_out_not_to_be_the_newest_is_canceled_by_its_worker_not_failed(
    site: Site, provider: FakeProvider
) -> None:
    provider.gate.clear()
    job_id = site.ingest("overtaken")
    site.start()
    provider.wait_for_requests(1)
    tables.change(
        site.db,
        """
        INSERT INTO document_versions
          (document_id, version_no, file_object_id, original_filename, content_type, file_hash, status)
        SELECT document_id, 2, file_object_id, original_filename, content_type, file_hash, 'CANCELED'
        FROM document_versions
        """,
    )
    provider.gate.set()
    site.wait_for(job_id, JobStatus.CANCELED)
    assert tables.vectors(site.db, job_id) == {"STALE": 1}
    assert [attempt.status for attempt in tables.attempts(site.db, job_id)] == ["RELEASED"]


def test_the_same_document_indexed_again_has_one_active_set_case_28(site: Site) -> None:
    site.start()
    first = site.ingest("same", name="report")
    site.wait_indexed(first)
    second = documents.register(site.db, site.source("same", name="report"), force=True).job_id
    assert second is not None
    site.wait_indexed(second)
    assert tables.vectors(site.db, first) == {"STALE": 1}
    assert tables.vectors(site.db, second) == {"ACTIVE": 1}
    assert site.find("same") == ["same"]
