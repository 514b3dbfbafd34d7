"""Promises of a worker whose provider or object store fails: what is retried, what is not, and with which code."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from docgrid_core.jobs import JobId, JobStatus
from docgrid_core.settings import StorageSettings
from docgrid_core.store import documents
from support import tables
from support.fake_provider import FakeProvider, Fault, Json, answer, hang, raw, reset_midway, status
from support.proxy import Proxy
from support.races import wait_until
from support.site import Site, job_of


@pytest.fixture
def network(storage_settings: StorageSettings) -> Iterator[Proxy]:
    """Yield what lies between workers and the object store."""
    host, _, port = storage_settings.endpoint.partition(":")
    with Proxy((host, int(port))) as proxy:
        yield proxy


def failures(site: Site, job_id: JobId) -> list[str | None]:
    """Return the failure types of a job's attempts; the last one is None if it was indexed."""
    return [row.failure_type for row in tables.attempts(site.db, job_id)]


def promote_until_indexed(site: Site, job_id: JobId) -> None:
    """Let every retry come due at once until the job is INDEXED."""

    def indexed() -> bool:
        tables.come_due(site.db)
        return site.status(job_id) == "INDEXED"

    wait_until(indexed)


def test_a_provider_that_fails_breaks_off_or_hangs_is_asked_again(site: Site, provider: FakeProvider) -> None:
    provider.plan(status(500), reset_midway, hang)
    job_id = site.ingest("patience")
    site.start(worker_max_concurrency="1", embedding_read_timeout="300ms")
    promote_until_indexed(site, job_id)
    assert failures(site, job_id) == ["EMBEDDING_PROVIDER_UNAVAILABLE"] * 3 + [None]
    assert tables.job(site.db, job_id).retry_count == 3
    # The chunks of the first attempt are used again.
    assert tables.events(site.db, job_id).count("CHUNKED") == 1


def test_a_provider_that_is_not_there_is_asked_again(site: Site, provider: FakeProvider) -> None:
    with Proxy(("127.0.0.1", int(provider.base_url.rpartition(":")[2]))) as proxy:
        proxy.refuse()
        job_id = site.ingest("patience")
        site.start(embedding_base_url=f"http://{proxy.endpoint}")
        wait_until(lambda: "RETRY" in tables.events(site.db, job_id))
        proxy.serve()
        promote_until_indexed(site, job_id)
    assert set(failures(site, job_id)) == {"EMBEDDING_PROVIDER_UNAVAILABLE", None}


def test_a_provider_that_never_comes_back_fails_the_job_after_its_retries(
    site: Site, provider: FakeProvider
) -> None:
    provider.plan(*[status(503)] * 4)
    job_id = site.ingest("in vain")
    site.start()

    def failed() -> bool:
        tables.come_due(site.db)
        return site.status(job_id) == "FAILED"

    wait_until(failed)
    assert failures(site, job_id) == ["EMBEDDING_PROVIDER_UNAVAILABLE"] * 4


def test_a_provider_that_names_a_wait_is_not_asked_before(site: Site, provider: FakeProvider) -> None:
    provider.plan(status(429, retry_after="3600"))
    job_id = site.ingest("later")
    site.start()
    wait_until(lambda: "RETRY" in tables.events(site.db, job_id))
    row = tables.job(site.db, job_id)
    assert row.next_retry_at - row.updated_at >= timedelta(seconds=3600)


def drop_last(body: Json) -> None:
    body["data"].pop()


def set_vector(body: Json, vector: list[float]) -> None:
    body["data"][0]["embedding"] = vector


REFUSED: dict[str, Fault] = {
    "EMBEDDING_REQUEST_INVALID 400": status(400),
    "EMBEDDING_REQUEST_INVALID 413": status(413),
    "EMBEDDING_RESULT_INVALID one short": answer(drop_last),
    "EMBEDDING_RESULT_INVALID wrong dimension": answer(lambda body: set_vector(body, [1.0] * 7)),
    "EMBEDDING_RESULT_INVALID zero": answer(lambda body: set_vector(body, [0.0] * 8)),
    "EMBEDDING_RESULT_INVALID not a number": answer(lambda body: set_vector(body, [float("nan")] * 8)),
    "EMBEDDING_RESULT_INVALID another model": answer(lambda body: body.update(model="another")),
    "EMBEDDING_RESULT_INVALID no list": raw(b"{}"),
}


def test_refusals_and_bad_vectors_fail_their_document_at_once_and_store_nothing_cases_25_and_26(
    site: Site, provider: FakeProvider
) -> None:
    provider.plan(*REFUSED.values())
    jobs = [site.ingest(f"{name} chunk", priority=-number) for number, name in enumerate(REFUSED)]
    neighbour = site.ingest("neighbour", priority=-100)
    worker = site.start(worker_max_concurrency="1")
    site.wait_indexed(neighbour)
    # The job's message is the code's own; the worker's log says what the server did.
    details = {line["detail"] for line in worker.lines("a stage failed")}
    assert {"HTTP 400", "HTTP 413", "another model answered"} <= details
    for name, job_id in zip(REFUSED, jobs, strict=True):
        assert failures(site, job_id) == [name.partition(" ")[0]], name
        assert site.status(job_id) == "FAILED"
        assert tables.vectors(site.db, job_id) == {}


def test_an_object_store_that_is_away_is_asked_again(
    site: Site, provider: FakeProvider, network: Proxy
) -> None:
    network.refuse()
    job_id = site.ingest("patience")
    site.start(storage_endpoint=network.endpoint)
    wait_until(lambda: "RETRY" in tables.events(site.db, job_id))
    network.serve()
    promote_until_indexed(site, job_id)
    assert set(failures(site, job_id)) == {"STORAGE_UNAVAILABLE", None}


def test_a_missing_object_is_waited_for_while_it_is_young_and_given_up_when_it_is_old(site: Site) -> None:
    job_id = site.register_missing()
    site.start()
    wait_until(lambda: "RETRY" in tables.events(site.db, job_id))
    assert failures(site, job_id)[0] == "STORAGE_UNAVAILABLE"
    tables.change(
        site.db,
        "UPDATE document_versions SET created_at = created_at - interval '1 hour' WHERE id ="
        " (SELECT document_version_id FROM embedding_jobs WHERE id = :id)",
        id=job_id,
    )
    tables.come_due(site.db)
    site.wait_for(job_id, JobStatus.FAILED)
    assert failures(site, job_id)[-1] == "STORAGE_OBJECT_MISSING"


def test_an_object_that_changed_since_it_was_registered_is_refused(site: Site) -> None:
    source = site.source("registered")
    other = site.source("swapped")
    item = replace(source.object, key=other.object.key)
    job_id = job_of(documents.register(site.db, replace(source, object=item)))
    site.start()
    site.wait_for(job_id, JobStatus.FAILED)
    assert failures(site, job_id) == ["STORAGE_OBJECT_CHANGED"]


def test_a_file_over_the_limit_is_refused(site: Site) -> None:
    job_id = site.ingest("x" * 1001)
    site.start(parsing_max_file_size="1000")
    site.wait_for(job_id, JobStatus.FAILED)
    (attempt,) = tables.attempts(site.db, job_id)
    assert (attempt.failure_type, attempt.error_code) == ("DOCUMENT_CONTENT_INVALID", "DOCUMENT-PARSING-008")


def test_three_internal_errors_of_different_jobs_in_a_row_end_the_process_with_1_after_a_drain(
    site: Site, provider: FakeProvider, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # No victim comes round again before the third one has failed.
    waits = {"worker_retry_initial_delay": "1h", "worker_retry_max_delay": "1h"}
    worker = site.start(worker_max_concurrency="2", tmpdir=str(scratch), **waits)
    site.wait_indexed(site.ingest("before"))
    provider.gate.clear()
    slow = site.ingest("running meanwhile")
    provider.wait_for_requests(2)
    scratch.rmdir()  # a bad node: no temporary file can be made any more
    jobs = [site.ingest(f"victim {number}") for number in range(3)]
    worker.wait_for_line("draining")
    provider.gate.set()
    assert worker.wait() == 1
    assert site.status(slow) == "INDEXED"
    assert tables.worker(site.db, worker.worker_id).status == "STOPPED"
    for job_id in jobs:
        assert failures(site, job_id) == ["WORKER_INTERNAL_ERROR"]
        assert site.status(job_id) == "PENDING"


def test_one_job_that_fails_internally_again_and_again_does_not_end_the_process(
    site: Site, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    worker = site.start(worker_max_concurrency="1", tmpdir=str(scratch))
    site.wait_indexed(site.ingest("before"))
    scratch.rmdir()
    job_id = site.ingest("poison")

    def failed() -> bool:
        tables.come_due(site.db)
        return site.status(job_id) == "FAILED"

    wait_until(failed)
    assert failures(site, job_id) == ["WORKER_INTERNAL_ERROR"] * 4
    scratch.mkdir()
    site.wait_indexed(site.ingest("after"))
    assert worker.exit_code is None


def test_out_of_memory_is_not_a_jobs_failure_the_process_ends_and_recovery_takes_the_job(
    site: Site,
) -> None:
    worker = site.start(worker_max_concurrency="1")
    site.wait_indexed(site.ingest("before"))
    process = psutil.Process(worker.pid)
    limit = process.memory_info().vms + 10_000_000
    process.rlimit(psutil.RLIMIT_AS, (limit, limit))
    # Far more than what threads that have ended may have left of the address space.
    job_id = site.ingest("word " * 9_600_000)
    assert worker.wait() not in {0, 75}
    assert failures(site, job_id) == [None]
    assert tables.attempts(site.db, job_id)[0].status == "STARTED"
    site.tick_until_recovered()
    assert failures(site, job_id) == ["WORKER_CRASHED"]


def test_a_report_that_the_database_refuses_is_left_to_recovery_and_costs_a_retry(
    site: Site, provider: FakeProvider
) -> None:
    tables.change(
        site.db,
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'refused'; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON embedding_job_attempts
        FOR EACH ROW WHEN (NEW.failure_type = 'EMBEDDING_REQUEST_INVALID') EXECUTE FUNCTION refuse()
        """,
    )
    provider.plan(status(400))
    job_id = site.ingest("unlucky")
    worker = site.start(
        worker_max_concurrency="1",
        worker_lease_duration="2s",
        worker_lease_renewal_interval="200ms",
        worker_dead_threshold="1h",
    )
    worker.wait_for_line("execution ended")
    assert worker.lines("execution ended")[0]["outcome"] == "left to recovery"
    site.tick_until_recovered()
    site.wait_indexed(job_id)
    assert failures(site, job_id) == ["WORKER_LEASE_EXPIRED", None]
    assert tables.job(site.db, job_id).retry_count == 1
