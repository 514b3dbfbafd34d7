"""Giving a job back without spending a retry: at shutdown, and to wait for a provider."""

from datetime import timedelta

import pytest

from docgrid_core.database import Database
from docgrid_core.jobs import AttemptStatus
from docgrid_core.records import FailureOutcome
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import claim, release, workers
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Execution, Stage
from support import tables

POLICY = RetryPolicy()
A_DAY = timedelta(days=1)


def defer(db: Database, run: Execution, *, wait: timedelta = timedelta(minutes=3)) -> FailureOutcome:
    return release.defer(db, run.own, factories.DEFERRAL, wait=wait, max_deferral=A_DAY, policy=POLICY)


def next_run(db: Database, run: Execution) -> Execution:
    tables.come_due(db)
    claim.promote(db)
    return factories.run(db, document=run.document, worker=run.worker)


def test_a_claim_that_was_never_started_goes_back_without_an_attempt(db: Database) -> None:
    """Case 2, the core's part."""
    document, worker = factories.register(db), factories.register_worker(db)
    claimed = factories.claim_one(db, worker)

    release.release(db, claimed, reason="shutdown")

    job = tables.job(db, document.job_id)
    assert (job.status, job.retry_count, job.next_retry_at, job.claim_token) == ("PENDING", 0, None, None)
    assert tables.attempts(db, document.job_id) == []
    assert tables.events(db, document.job_id) == ["JOB_CREATED", "LOCKED", "RELEASED"]
    assert factories.claim_one(db, factories.register_worker(db)).job_id == document.job_id


def test_a_running_execution_goes_back_with_its_attempt_released_and_its_version_kept(db: Database) -> None:
    run = factories.run(db, Stage.CHUNKS_STORED)

    release.release(db, run.claim, reason="shutdown")

    (attempt,) = tables.attempts(db, run.claim.job_id)
    assert (attempt.status, attempt.failure_type, attempt.error_code) == ("RELEASED", None, None)
    assert attempt.ended_at >= attempt.started_at
    assert tables.version(db, run.claim.job_id).status == "CHUNKED"


def test_shutdowns_never_fail_a_job_however_often(db: Database) -> None:
    run = factories.run(db)
    for _ in range(12):
        release.release(db, run.claim, reason="shutdown")
        run = factories.run(db, document=run.document)
    factories.advance(db, run.own, Stage.COMPLETED)
    job = tables.job(db, run.claim.job_id)
    assert (job.status, job.retry_count) == ("INDEXED", 0)
    assert [attempt.attempt_no for attempt in tables.attempts(db, run.claim.job_id)] == list(range(1, 14))


def test_a_released_worker_may_stop_at_once(db: Database) -> None:
    run = factories.run(db)
    release.release(db, run.claim, reason="shutdown")
    assert workers.stop(db, run.worker)
    assert tables.value(db, "SELECT count(*) FROM embedding_jobs WHERE status = 'PROCESSING'") == 0


def test_a_deferred_job_waits_and_costs_no_retry(db: Database) -> None:
    run = factories.run(db, Stage.EMBED_PREPARED)

    outcome = defer(db, run)

    job = tables.job(db, run.claim.job_id)
    assert (job.status, job.retry_count, job.claim_token) == ("PENDING", 0, None)
    assert job.next_retry_at - job.updated_at == timedelta(minutes=3)
    assert job.deferred_since == job.updated_at
    (attempt,) = tables.attempts(db, run.claim.job_id)
    assert (attempt.status, attempt.next_retry_at) == ("RELEASED", job.next_retry_at)
    assert outcome == FailureOutcome(
        run.claim.job_id, run.own.attempt_id, AttemptStatus.RELEASED, True, job.next_retry_at
    )
    assert tables.version(db, run.claim.job_id).status == "EMBEDDING"
    assert tables.events(db, run.claim.job_id)[-1] == "DEFERRED"


def test_deferrals_count_from_the_first_one(db: Database) -> None:
    run = factories.run(db)
    defer(db, run)
    since = tables.job(db, run.claim.job_id).deferred_since
    for _ in range(4):
        run = next_run(db, run)
        defer(db, run)
    job = tables.job(db, run.claim.job_id)
    assert (job.deferred_since, job.retry_count) == (since, 0)


@pytest.mark.parametrize(
    ("age", "status"), [(timedelta(hours=23), "RELEASED"), (timedelta(hours=25), "FAILED")]
)
def test_a_job_that_was_deferred_for_a_day_fails_as_unavailable(
    db: Database, age: timedelta, status: str
) -> None:
    run = factories.run(db)
    tables.change(db, "UPDATE embedding_jobs SET deferred_since = clock_timestamp() - :age", age=age)

    outcome = defer(db, run)

    assert outcome.attempt_status == status
    job = tables.job(db, run.claim.job_id)
    assert (job.status, job.retry_count) == ("PENDING", int(status == "FAILED"))
    (attempt,) = tables.attempts(db, run.claim.job_id)
    expected = "EMBEDDING_PROVIDER_UNAVAILABLE" if status == "FAILED" else None
    assert attempt.failure_type == expected


def test_a_job_that_is_never_served_ends_in_the_end(db: Database) -> None:
    run = factories.run(db)
    tables.change(db, "UPDATE embedding_jobs SET deferred_since = clock_timestamp() - interval '2 days'")
    for _ in range(3):
        assert defer(db, run).retried
        run = next_run(db, run)
    assert not defer(db, run).retried
    assert tables.job(db, run.claim.job_id).status == "FAILED"
