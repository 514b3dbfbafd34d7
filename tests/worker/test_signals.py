"""Promises of a worker that is told to end: what runs is finished or given back, nothing is FAILED."""

import signal

from docgrid_core.jobs import JobId
from support import tables
from support.fake_provider import FakeProvider
from support.races import wait_until
from support.site import Site
from support.worker_process import WorkerProcess


def running_worker(site: Site, provider: FakeProvider, *, jobs: int = 2, **overrides: str) -> WorkerProcess:
    """Return a worker whose slots wait for the provider."""
    provider.gate.clear()
    worker = site.start(worker_max_concurrency=str(jobs), **overrides)
    provider.wait_for_requests(jobs)
    return worker


def last_change(site: Site) -> object:
    """Return the time of the last change of any job, attempt, version, document or event."""
    return tables.value(
        site.db,
        """
        SELECT greatest((SELECT max(updated_at) FROM embedding_jobs),
                        (SELECT max(updated_at) FROM embedding_job_attempts),
                        (SELECT max(updated_at) FROM document_versions), (SELECT max(updated_at) FROM documents),
                        (SELECT max(occurred_at) FROM indexing_events))
        """,
    )


def require_released(site: Site, job_id: JobId) -> None:
    """Require that the job was given back: ready at once, no retry spent."""
    job = tables.job(site.db, job_id)
    assert (job.status, job.retry_count, job.next_retry_at) == ("PENDING", 0, None)
    assert [attempt.status for attempt in tables.attempts(site.db, job_id)] == ["RELEASED"]


def test_sigterm_drains_running_jobs_and_stopped_is_the_last_write(
    site: Site, provider: FakeProvider
) -> None:
    jobs = [site.ingest(f"running {number}") for number in range(2)]
    worker = running_worker(site, provider)
    waiting = site.ingest("waiting")
    worker.drain()
    worker.wait_for_line("draining")
    before = tables.worker(site.db, worker.worker_id).last_heartbeat_at
    wait_until(lambda: tables.worker(site.db, worker.worker_id).last_heartbeat_at > before)
    provider.gate.set()
    assert worker.wait() == 0
    row = tables.worker(site.db, worker.worker_id)
    assert (row.status, row.stop_reason, row.running_jobs) == ("STOPPED", "Stopped", 0)
    assert row.updated_at == row.stopped_at
    assert row.stopped_at > last_change(site)
    assert [site.status(job_id) for job_id in jobs] == ["INDEXED", "INDEXED"]
    assert tables.events(site.db, waiting) == ["JOB_CREATED"]


def test_sigterm_ends_an_idle_worker_at_once(site: Site) -> None:
    worker = site.start_registered()
    worker.drain()
    assert worker.wait(5) == 0
    assert tables.worker(site.db, worker.worker_id).status == "STOPPED"


def test_jobs_that_outlast_the_grace_period_are_released_and_stuck_threads_are_not_waited_for(
    site: Site, provider: FakeProvider
) -> None:
    jobs = [site.ingest(f"stuck {number}") for number in range(2)]
    worker = running_worker(site, provider, worker_shutdown_grace_period="500ms")
    worker.drain()
    assert worker.wait(10) == 0
    for job_id in jobs:
        require_released(site, job_id)
    assert tables.worker(site.db, worker.worker_id).stopped_at > last_change(site)
    provider.gate.set()
    site.start()
    site.wait_indexed(*jobs)


def test_a_lease_is_renewed_while_its_worker_drains(site: Site, provider: FakeProvider) -> None:
    job_id = site.ingest("slow")
    worker = running_worker(site, provider, jobs=1)
    worker.drain()
    worker.wait_for_line("draining")
    lease = tables.job(site.db, job_id).lock_expires_at
    wait_until(lambda: tables.job(site.db, job_id).lock_expires_at > lease)
    provider.gate.set()
    assert worker.wait() == 0
    assert site.status(job_id) == "INDEXED"


def test_a_second_signal_ends_the_grace_period(site: Site, provider: FakeProvider) -> None:
    job_id = site.ingest("stuck")
    worker = running_worker(site, provider, jobs=1, worker_shutdown_grace_period="1h")
    worker.drain()
    worker.wait_for_line("draining")
    worker.drain()
    assert worker.wait(10) == 0
    require_released(site, job_id)


def test_a_claim_that_sigterm_overtakes_is_released_unstarted_case_2(site: Site) -> None:
    tables.hold_updates(site.db, "embedding_jobs")
    worker = site.start_registered(worker_max_concurrency="4")
    with tables.holding(site.db):
        jobs = [site.ingest(f"claimed {number}") for number in range(3)]
        wait_until(site.worker_waits_for_lock)
        worker.drain()
        worker.wait_for_line("draining")
    assert worker.wait(15) == 0
    claimed = [job_id for job_id in jobs if "LOCKED" in tables.events(site.db, job_id)]
    assert claimed
    for job_id in claimed:
        assert tables.events(site.db, job_id) == ["JOB_CREATED", "LOCKED", "RELEASED"]
        assert tables.attempts(site.db, job_id) == []
    for job_id in jobs:
        row = tables.job(site.db, job_id)
        assert (row.status, row.retry_count, row.next_retry_at) == ("PENDING", 0, None)
    assert tables.worker(site.db, worker.worker_id).stopped_at > last_change(site)


def test_a_worker_that_never_registered_ends_at_once_with_0(site: Site) -> None:
    worker = site.start(worker_model="unknown")
    worker.wait_for_line("not registered yet")
    worker.drain()
    assert worker.wait(5) == 0


def test_a_hail_of_signals_blocks_nothing(site: Site) -> None:
    worker = site.start_registered()
    for _ in range(200):
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGINT)
    assert worker.wait(10) == 0


def test_no_shutdown_fails_a_job_however_often_it_happens(site: Site, provider: FakeProvider) -> None:
    job_id = site.ingest("unlucky")
    for _ in range(2):
        worker = running_worker(site, provider, jobs=1, worker_shutdown_grace_period="0s")
        worker.drain()
        assert worker.wait(10) == 0
    job = tables.job(site.db, job_id)
    assert (job.status, job.retry_count) == ("PENDING", 0)
    assert [attempt.status for attempt in tables.attempts(site.db, job_id)] == ["RELEASED"] * 2
