"""Recovery: what the end of a worker, or of a lease, means for its jobs."""

from datetime import timedelta
from functools import partial

import pytest

from docgrid_core.database import Database
from docgrid_core.jobs import PLANNED_ENDS, FailureType, StopReason
from docgrid_core.retry import RELEASES_BEFORE_CRASH, RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import claim, complete, control, fail, recovery, release, workers
from docgrid_core.store.recovery import PoolRecovery, RecoveryReport
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Execution, Stage
from support import races, tables

POLICY = RetryPolicy(initial_delay=timedelta(seconds=10), max_delay=timedelta(minutes=5), jitter=0)
NOTHING = RecoveryReport()
CRASH_ENDS = sorted(set(StopReason) - PLANNED_ENDS)


def recover(db: Database, limit: int = 100) -> RecoveryReport | None:
    return recovery.recover_batch(db, limit=limit, policy=POLICY)


def run_in_pod(db: Database, stage: Stage = Stage.STARTED, document: Execution | None = None) -> Execution:
    """Start an execution by a new worker in the pod `pod`, of a new document or of that of `document`."""
    worker = factories.register_worker(db, pod_uid="pod")
    return factories.run(db, stage, worker=worker, document=document.document if document else None)


def end(db: Database, reason: StopReason) -> None:
    assert workers.mark_pod_ended(db, pod_uid="pod", reason=reason)


def make_ready(db: Database) -> None:
    tables.come_due(db)
    claim.promote(db)


def test_an_expired_lease_costs_a_retry_and_the_first_crash_is_ready_at_once(db: Database) -> None:
    run = factories.run(db, Stage.CHUNKS_STORED)
    tables.expire_lease(db, run.claim.job_id)

    assert recover(db) == RecoveryReport(retried=1)

    job = tables.job(db, run.claim.job_id)
    assert (job.status, job.retry_count, job.next_retry_at) == ("PENDING", 1, None)
    assert (job.claim_token, job.locked_by_worker_id, job.locked_at, job.lock_expires_at) == (None,) * 4
    (attempt,) = tables.attempts(db, run.claim.job_id)
    assert (attempt.status, attempt.failure_type) == ("FAILED", "WORKER_LEASE_EXPIRED")
    assert (attempt.retried, attempt.next_retry_at) == (True, None)
    assert tables.version(db, run.claim.job_id).status == "CHUNKED"
    assert tables.events(db, run.claim.job_id)[-2:] == ["LEASE_EXPIRED", "RETRY"]
    assert recover(db) == NOTHING


@pytest.mark.parametrize("reason", sorted(PLANNED_ENDS))
def test_a_planned_end_costs_no_retry(db: Database, reason: StopReason) -> None:
    run = run_in_pod(db, Stage.PARSE_PREPARED)
    end(db, reason)

    assert recover(db) == RecoveryReport(released=1)

    job = tables.job(db, run.claim.job_id)
    assert (job.status, job.retry_count, job.next_retry_at) == ("PENDING", 0, None)
    (attempt,) = tables.attempts(db, run.claim.job_id)
    assert (attempt.status, attempt.error_code, attempt.failure_type) == ("RELEASED", reason.value, None)
    assert tables.events(db, run.claim.job_id)[-1] == "RELEASED"


@pytest.mark.parametrize("reason", CRASH_ENDS)
def test_a_crash_costs_a_retry_and_says_what_it_was(db: Database, reason: StopReason) -> None:
    run = run_in_pod(db)
    end(db, reason)

    assert recover(db) == RecoveryReport(retried=1)

    (attempt,) = tables.attempts(db, run.claim.job_id)
    oom = reason is StopReason.OOM_KILLED
    assert attempt.failure_type == ("WORKER_OOM_KILLED" if oom else "WORKER_CRASHED")
    assert tables.job(db, run.claim.job_id).retry_count == 1


@pytest.mark.parametrize("reason", [*CRASH_ENDS, None])
def test_a_claim_that_never_started_is_released_whatever_ended_it(
    db: Database, reason: StopReason | None
) -> None:
    document, worker = factories.register(db), factories.register_worker(db, pod_uid="pod")
    factories.claim_one(db, worker)
    if reason is None:
        tables.expire_lease(db, document.job_id)
    else:
        end(db, reason)

    assert recover(db) == RecoveryReport(released=1)
    assert tables.job(db, document.job_id).retry_count == 0
    assert tables.attempts(db, document.job_id) == []


def test_a_workers_end_counts_before_its_expired_lease(db: Database) -> None:
    run = run_in_pod(db)
    end(db, StopReason.EVICTED)
    tables.expire_lease(db, run.claim.job_id)
    report = recover(db)
    assert report is not None
    assert report.pools == (PoolRecovery(None, "Evicted", released=1),)


def test_jobs_of_live_workers_with_live_leases_are_left_alone(db: Database) -> None:
    """Case 3."""
    run = factories.run(db)
    tables.silence(db, run.worker.id)
    before = tables.dump(db)
    assert recover(db) == NOTHING
    assert tables.dump(db) == before


def test_later_crashes_wait_longer_and_longer(db: Database) -> None:
    run = factories.run(db)
    waits = []
    for _ in range(3):
        tables.expire_lease(db, run.claim.job_id)
        recover(db)
        job = tables.job(db, run.claim.job_id)
        waits.append(job.next_retry_at and job.next_retry_at - job.updated_at)
        make_ready(db)
        run = factories.run(db, document=run.document)
    assert waits == [None, timedelta(seconds=20), timedelta(seconds=40)]


def test_a_first_crash_after_other_failures_is_ready_at_once_too(db: Database) -> None:
    run = factories.run(db)
    report = fail.Report(FailureType.EMBEDDING_PROVIDER_UNAVAILABLE, "away")
    fail.fail(db, run.own, report, policy=POLICY)
    make_ready(db)
    run = factories.run(db, document=run.document)
    tables.expire_lease(db, run.claim.job_id)
    recover(db)
    assert tables.job(db, run.claim.job_id).next_retry_at is None


def test_a_document_that_kills_every_worker_fails_after_its_retries(db: Database) -> None:
    """Case 4: the counter says how often it was tried."""
    run = run_in_pod(db)
    reports = []
    for _ in range(4):
        end(db, StopReason.ERROR)
        reports.append(recover(db))
        make_ready(db)
        if tables.job(db, run.claim.job_id).status == "PENDING":
            run = run_in_pod(db, document=run)

    assert reports == [RecoveryReport(retried=1)] * 3 + [RecoveryReport(failed=1)]
    job = tables.job(db, run.claim.job_id)
    assert (job.status, job.retry_count, job.error_code) == ("FAILED", 3, "WORKER_CRASHED")
    assert job.claim_token == run.claim.token.value, "ownership is kept"
    assert [a.attempt_no for a in tables.attempts(db, run.claim.job_id)] == [1, 2, 3, 4]
    assert tables.version(db, run.claim.job_id).status == "FAILED"
    assert tables.document(db, run.claim.job_id).status == "FAILED"
    assert tables.events(db, run.claim.job_id)[-2:] == ["LEASE_EXPIRED", "FAILED"]


def test_every_recovery_path_spends_the_same_counter_and_cancel_works_on_each(db: Database) -> None:
    """Case 5."""
    run = run_in_pod(db)
    for path, reason in enumerate([StopReason.OOM_KILLED, None, StopReason.HEARTBEAT_OVERDUE], 1):
        if reason is None:
            tables.expire_lease(db, run.claim.job_id)
        else:
            end(db, reason)
        assert recover(db) == RecoveryReport(retried=1)
        assert tables.job(db, run.claim.job_id).retry_count == path
        make_ready(db)
        run = run_in_pod(db, document=run)
    end(db, StopReason.ERROR)

    control.cancel(db, run.claim.job_id, reason="test", by="test")

    assert recover(db) == NOTHING
    assert tables.job(db, run.claim.job_id).status == "CANCELED"
    assert [a.status for a in tables.attempts(db, run.claim.job_id)] == ["FAILED"] * 3 + ["RELEASED"]


def test_a_crash_of_a_newer_version_never_hides_the_searchable_one(db: Database) -> None:
    factories.index(db, "a", "old")
    run = factories.run(db, Stage.VECTORS_STORED, document=factories.register(db, "a", "new"))
    tables.change(db, "UPDATE embedding_jobs SET retry_count = max_retry_count")
    tables.expire_lease(db, run.claim.job_id)

    assert recover(db) == RecoveryReport(failed=1)

    assert tables.document(db, run.claim.job_id).status == "INDEXED"
    assert tables.vectors(db, run.claim.job_id) == {"STALE": 3}
    assert tables.value(db, "SELECT count(*) FROM embeddings WHERE status = 'ACTIVE'") == 3


def run_in_pool(db: Database, pool: str, *, reason: StopReason | None) -> None:
    """Start an execution by a worker of a pool that then ends so; None: its lease runs out."""
    run = factories.run(db, worker=factories.register_worker(db, pool_uid=pool))
    if reason is None:
        tables.expire_lease(db, run.claim.job_id)
    else:
        workers.mark_ended(db, run.worker.id, reason)


def test_a_report_tells_for_each_pool_and_reason_how_many_jobs_were_taken_back(db: Database) -> None:
    run_in_pool(db, "one", reason=StopReason.ERROR)
    tables.change(db, "UPDATE embedding_jobs SET retry_count = max_retry_count")
    for reason in (StopReason.ERROR, StopReason.EVICTED, StopReason.EVICTED):
        run_in_pool(db, "one", reason=reason)
    run_in_pool(db, "two", reason=StopReason.ERROR)
    for _ in range(2):
        run_in_pool(db, "", reason=None)

    reports = [report for _ in range(4) if (report := recover(db, limit=3)) is not None]

    total = sum(reports, NOTHING)
    assert [report.settled for report in reports] == [5, 2, 0, 0]
    assert total == RecoveryReport(released=2, retried=4, failed=1)
    assert set(total.pools) == {
        PoolRecovery("one", "Error", retried=1, failed=1),
        PoolRecovery("one", "Evicted", released=2),
        PoolRecovery("two", "Error", retried=1),
        PoolRecovery(None, "LeaseExpired", retried=2),
    }
    assert len(total.pools) == 4, "one line for each"


def evict(db: Database, run: Execution) -> tuple[RecoveryReport | None, Execution]:
    end(db, StopReason.EVICTED)
    report = recover(db)
    make_ready(db)
    return report, run_in_pod(db, document=run)


def test_the_fifth_eviction_in_a_row_counts_as_a_crash(db: Database) -> None:
    run = run_in_pod(db)
    reports = []
    for _ in range(2 * RELEASES_BEFORE_CRASH):
        report, run = evict(db, run)
        reports.append(report)
    row = [RecoveryReport(released=1)] * (RELEASES_BEFORE_CRASH - 1) + [RecoveryReport(retried=1)]
    assert reports == row * 2, "the count starts again after the crash"
    assert tables.attempts(db, run.claim.job_id)[4].failure_type == "WORKER_CRASHED"


@pytest.mark.parametrize("other", ["own release", "failure"])
def test_an_execution_that_ended_otherwise_breaks_the_row_of_evictions(db: Database, other: str) -> None:
    run = run_in_pod(db)
    for _ in range(4):
        _, run = evict(db, run)
    if other == "failure":
        report = fail.Report(FailureType.WORKER_INTERNAL_ERROR, "it broke")
        fail.fail(db, run.own, report, policy=POLICY)
    else:
        release.release(db, run.claim, reason="shutdown")
    make_ready(db)
    run = run_in_pod(db, document=run)
    for _ in range(4):
        outcome, run = evict(db, run)
        assert outcome == RecoveryReport(released=1)
    outcome, run = evict(db, run)
    assert outcome == RecoveryReport(retried=1)


def test_claims_that_never_started_do_not_count_as_evictions(db: Database) -> None:
    run = run_in_pod(db)
    for _ in range(4):
        _, run = evict(db, run)
    release.release(db, run.claim, reason="shutdown")
    for _ in range(6):
        factories.claim_one(db, factories.register_worker(db, pod_uid="pod"))
        end(db, StopReason.EVICTED)
        assert recover(db) == RecoveryReport(released=1)
    assert tables.job(db, run.claim.job_id).retry_count == 0


def test_the_oldest_expiry_comes_first(db: Database) -> None:
    runs = [factories.run(db) for _ in range(3)]
    for run, minutes in zip(runs, (10, 30, 20), strict=True):
        tables.change(
            db,
            "UPDATE embedding_jobs SET locked_at = now() - interval '1 hour', lock_expires_at = now() - :age"
            " WHERE id = :id",
            age=timedelta(minutes=minutes),
            id=run.claim.job_id,
        )
    recovered = []
    for _ in runs:
        recover(db, limit=1)
        recovered.append(
            [run.claim.job_id for run in runs if tables.job(db, run.claim.job_id).status == "PENDING"]
        )
    ids = [run.claim.job_id for run in runs]
    assert recovered == [[ids[1]], [ids[1], ids[2]], ids]


def test_a_job_that_somebody_is_settling_is_passed_over(
    db: Database, database_settings: DatabaseSettings
) -> None:
    """A worker marked dead completes at this moment: recovery neither waits for it nor takes the job back."""
    finishing, other = run_in_pod(db, Stage.VECTORS_STORED), run_in_pod(db)
    end(db, StopReason.HEARTBEAT_OVERDUE)
    with races.connected(database_settings) as slow:
        finish = partial(complete.complete, slow, finishing.own)
        with races.Frozen(slow, finish, before=2):
            assert recover(db) == RecoveryReport(retried=1)
            assert tables.job(db, other.claim.job_id).status == "PENDING"
    assert tables.job(db, finishing.claim.job_id).status == "INDEXED"
    assert recover(db) == NOTHING
