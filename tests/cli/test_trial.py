"""Promises of `docgrid doctor --document`: a document of its own goes all the way, and is gone afterwards."""

import re
import signal

import pytest

from docgrid_cli import trial
from docgrid_core.jobs import JobStatus
from support import tables
from support.cli import Cli
from support.proxy import Proxy
from support.races import wait_until
from support.site import Site


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a trial wait for a second."""
    monkeypatch.setattr(trial, "PATIENCE", 1.0)


def try_it(cli: Cli) -> tuple[int, str, str]:
    """Return the exit code, and verdict and text of the document's line."""
    answer = cli("doctor", "--document", "-o", "json")
    assert answer.err == ""
    (line,) = [row for row in answer.json if row["part"] == "document"]
    return answer.code, line["verdict"], line["text"]


def assert_nothing_is_left(site: Site, cli: Cli, status: JobStatus | None = None) -> None:
    """Assert that no trial document is there any more; `status` is that of its job."""
    assert cli("documents", "list", "-o", "json").json == []
    if status is not None:
        assert tables.value(site.db, "SELECT status FROM embedding_jobs") == status


def test_a_document_is_indexed_found_and_deleted(site_cli: Cli, site: Site) -> None:
    site.start_registered()
    for _ in range(2):  # what is left of one trial does not disturb the next
        code, verdict, text = try_it(site_cli)
        assert (code, verdict) == (0, "ok")
        assert text.startswith("indexed by ")
        assert "found with score 1.00, deleted again" in text
        assert_nothing_is_left(site, site_cli)
    assert site_cli("search", "trial document", "-o", "json").json == []
    sources = tables.fetch(site.db, "SELECT DISTINCT source_uri FROM documents")
    assert len(sources) == 2
    assert all(row[0].startswith("docgrid-doctor/") for row in sources)


def test_it_goes_before_what_waits(site_cli: Cli, site: Site) -> None:
    waiting = [site.ingest(f"waits {number}", priority=1000) for number in range(20)]
    site.start_registered(worker_max_concurrency="1")
    assert try_it(site_cli)[:2] == (0, "ok")
    site.wait_indexed(*waiting)


def test_without_a_worker_it_says_so_and_what_to_look_at(site_cli: Cli, site: Site, impatient: None) -> None:
    code, verdict, text = try_it(site_cli)
    assert (code, verdict) == (1, "FIX")
    assert text.startswith("no worker took the trial document within 1 s: see with `docgrid workers list`")
    assert "the model wordllama" in text
    assert_nothing_is_left(site, site_cli, JobStatus.CANCELED)


def test_a_failure_is_told_with_its_reason(site_cli: Cli, site: Site) -> None:
    site.start_registered(parsing_max_file_size="20")
    code, verdict, text = try_it(site_cli)
    assert (code, verdict) == (1, "FIX")
    assert text.startswith("the trial document was not indexed: DOCUMENT-PARSING-008: ")
    assert_nothing_is_left(site, site_cli, JobStatus.FAILED)


@pytest.mark.parametrize(
    "wrong",
    [
        {"storage_secret_key": "not-the-key"},  # the job is deferred until a person has corrected it
        {
            "storage_endpoint": "127.0.0.1:1",
            "worker_retry_initial_delay": "1h",
            "worker_retry_max_delay": "1h",
        },
    ],
    ids=["deferred", "retried"],
)
def test_an_attempt_that_is_to_be_repeated_is_told_with_its_reason_and_worker(
    site_cli: Cli, site: Site, impatient: None, wrong: dict[str, str]
) -> None:
    site.start_registered(**wrong)
    code, verdict, text = try_it(site_cli)
    assert (code, verdict) == (1, "FIX")
    told = r"the trial document was not indexed within 1 s: DOCUMENT-STORAGE-00\d: .+ \(worker worker\)"
    assert re.fullmatch(told, text)
    assert_nothing_is_left(site, site_cli, JobStatus.CANCELED)


def test_a_worker_that_does_not_get_on_is_named(site_cli: Cli, site: Site, impatient: None) -> None:
    host, _, port = site.storage.endpoint.rpartition(":")
    with Proxy((host, int(port))) as network:
        network.stall()
        site.start_registered(storage_endpoint=network.endpoint, storage_read_timeout="1m")
        code, verdict, text = try_it(site_cli)
        network.flow()
    assert (code, verdict) == (1, "FIX")
    assert re.fullmatch(r"the worker \S+ did not end with the trial document within 1 s: see its log", text)
    assert_nothing_is_left(site, site_cli, JobStatus.CANCELED)


def test_an_index_that_does_not_find_it_is_told(
    site_cli: Cli, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = site.start_registered()
    site.wait_indexed(site.ingest(trial.TEXT))
    whole.drain()
    # In pieces it is less like its own text than a document that is that text.
    site.start_registered(chunking_size="50", chunking_overlap="0")
    monkeypatch.setattr(trial, "MAX_TOP_K", 1)
    code, verdict, text = try_it(site_cli)
    assert (code, verdict) == (1, "FIX")
    assert "a search does not find it" in text
    assert len(site_cli("documents", "list", "-o", "json").json) == 1


def test_it_is_not_tried_while_a_part_needs_a_repair(site_cli: Cli, site: Site) -> None:
    site_cli.environment["DOCGRID_STORAGE_BUCKET"] = "no-such-bucket"
    assert try_it(site_cli) == (1, "unchecked", "needs the other parts")
    assert tables.value(site.db, "SELECT count(*) FROM documents") == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_trial_that_is_broken_off_leaves_no_document(
    site_cli: Cli, site: Site, number: signal.Signals
) -> None:
    with site_cli.start("doctor", "--document") as process:
        wait_until(lambda: tables.value(site.db, "SELECT count(*) FROM documents") == 1)
        process.send_signal(number)
        assert process.wait(30) == 130
    assert_nothing_is_left(site, site_cli, JobStatus.CANCELED)
