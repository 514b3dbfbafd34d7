"""Renewing leases: one statement for all of a worker's jobs, which waits for nobody and revives nothing."""

from dataclasses import replace
from functools import partial

import pytest

from docgrid_core.database import Database
from docgrid_core.jobs import JobId, StopReason
from docgrid_core.records import Claim
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import complete, control, leases, parse, recovery, release, workers
from docgrid_core.store.leases import Renewal
from docgrid_core.store.workers import RegisteredWorker
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Stage
from support import races, tables


def renew(db: Database, worker: RegisteredWorker, *claims: Claim, factor: int = 2) -> dict[JobId, Renewal]:
    return dict(leases.renew(db, worker, claims, lease_duration=factor * LEASE))


def test_renewing_extends_every_lease_of_the_worker_and_nothing_else(db: Database) -> None:
    worker = factories.register_worker(db)
    runs = [factories.run(db, worker=worker) for _ in range(3)]
    other = factories.run(db)
    before = [tables.job(db, run.claim.job_id) for run in runs]
    untouched = tables.job(db, other.claim.job_id)

    answer = renew(db, worker, *(run.claim for run in runs))

    assert answer == {run.claim.job_id: Renewal.RENEWED for run in runs}
    for old, run in zip(before, runs, strict=True):
        new = tables.job(db, run.claim.job_id)
        assert new.lock_expires_at - new.updated_at == 2 * LEASE
        kept = ("status", "locked_by_worker_id", "claim_token", "locked_at", "retry_count")
        assert [getattr(new, name) for name in kept] == [getattr(old, name) for name in kept]
        assert tables.events(db, run.claim.job_id)[-1] == "LOCKED"
    assert tables.job(db, other.claim.job_id) == untouched


def test_a_shorter_lease_after_a_redeploy_never_shortens_one(db: Database) -> None:
    run = factories.run(db, lease=3 * LEASE)
    assert renew(db, run.worker, run.claim, factor=1) == {run.claim.job_id: Renewal.RENEWED}
    assert tables.job(db, run.claim.job_id).lock_expires_at == run.claim.lock_expires_at


def test_renewing_nothing_is_nothing(db: Database) -> None:
    assert renew(db, factories.register_worker(db)) == {}


@pytest.mark.parametrize("end", ["expired", "released", "canceled", "completed", "taken over", "unknown"])
def test_a_lease_that_is_gone_is_lost_and_stays_gone(db: Database, end: str) -> None:
    run = factories.run(db, Stage.VECTORS_STORED)
    claimed = run.claim
    if end == "expired":
        tables.expire_lease(db, claimed.job_id)
    elif end == "released":
        release.release(db, claimed, reason="shutdown")
    elif end == "canceled":
        control.cancel(db, claimed.job_id, reason="test", by="test")
    elif end == "completed":
        complete.complete(db, run.own)
    elif end == "taken over":
        release.release(db, claimed, reason="shutdown")
        factories.run(db, document=run.document, worker=run.worker)
    else:
        claimed = replace(claimed, job_id=JobId(0))
    before = tables.dump(db)

    assert renew(db, run.worker, claimed) == {claimed.job_id: Renewal.LOST}
    assert tables.dump(db) == before


@pytest.mark.parametrize("end", ["stopped", "dead"])
def test_an_ended_worker_renews_nothing(db: Database, end: str) -> None:
    run = factories.run(db, worker=factories.register_worker(db, pod_uid="pod"))
    if end == "stopped":
        workers.stop(db, run.worker)
    else:
        workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.OOM_KILLED)
    assert renew(db, run.worker, run.claim) == {run.claim.job_id: Renewal.LOST}


def test_another_workers_lease_is_lost_to_whoever_asks(db: Database) -> None:
    run = factories.run(db)
    assert renew(db, factories.register_worker(db), run.claim) == {run.claim.job_id: Renewal.LOST}


def test_an_overdue_worker_that_nobody_has_marked_may_still_renew(db: Database) -> None:
    """A database that was away fences nobody."""
    run = factories.run(db)
    tables.silence(db, run.worker.id)
    assert renew(db, run.worker, run.claim) == {run.claim.job_id: Renewal.RENEWED}


def test_a_held_row_is_busy_is_not_lost_and_holds_up_no_other(
    db: Database, database_settings: DatabaseSettings
) -> None:
    worker = factories.register_worker(db)
    storing = factories.run(db, Stage.PARSE_PREPARED, worker=worker)
    other = factories.run(db, worker=worker)
    with races.connected(database_settings) as slow:
        store = partial(parse.store, slow, storing.own, factories.chunks(), lease_duration=LEASE)
        # In front of the statement after the job's lock.
        with races.Frozen(slow, store, before=3) as frozen:
            assert renew(db, worker, storing.claim, other.claim) == {
                storing.claim.job_id: Renewal.BUSY,
                other.claim.job_id: Renewal.RENEWED,
            }
            assert tables.job(db, storing.claim.job_id).lock_expires_at == storing.claim.lock_expires_at
        frozen.call.result()
    assert renew(db, worker, storing.claim) == {storing.claim.job_id: Renewal.RENEWED}


def test_a_held_row_is_lost_to_an_ended_worker(db: Database, database_settings: DatabaseSettings) -> None:
    run = factories.run(db, Stage.PARSE_PREPARED)
    with races.connected(database_settings) as slow:
        store = partial(parse.store, slow, run.own, factories.chunks(), lease_duration=LEASE)
        with races.Frozen(slow, store, before=3):
            workers.stop(db, run.worker)
            assert renew(db, run.worker, run.claim) == {run.claim.job_id: Renewal.LOST}


def test_recovery_meets_a_slow_but_live_job_and_leaves_it_alone(db: Database) -> None:
    """Case 3: its renewed lease keeps the attempt, which is given to nobody else."""
    run = factories.run(db, lease=LEASE)
    tables.change(db, "UPDATE embedding_jobs SET lock_expires_at = clock_timestamp() + interval '1 minute'")
    assert renew(db, run.worker, run.claim) == {run.claim.job_id: Renewal.RENEWED}
    before = tables.dump(db)

    assert recovery.recover_batch(db, limit=10, policy=RetryPolicy()) == recovery.RecoveryReport()

    assert tables.dump(db) == before
    factories.advance(db, run.own, Stage.COMPLETED)


def test_a_renewal_and_a_recovery_at_once_never_both_win(db: Database) -> None:
    """Case 3: around the very moment of the expiry either the lease is extended or the job is taken back."""
    for _ in range(10):
        run = factories.run(db)
        tables.change(
            db,
            "UPDATE embedding_jobs SET lock_expires_at = clock_timestamp() + interval '8 milliseconds'"
            " WHERE id = :id",
            id=run.claim.job_id,
        )
        renewal, report = races.together(
            [
                partial(renew, db, run.worker, run.claim),
                partial(recovery.recover_batch, db, limit=10, policy=RetryPolicy()),
            ]
        )
        row = tables.job(db, run.claim.job_id)
        taken_back = report == recovery.RecoveryReport(retried=1)
        assert (row.status == "PENDING") == taken_back
        assert not (taken_back and renewal == {run.claim.job_id: Renewal.RENEWED})
        tables.change(
            db,
            "UPDATE embedding_jobs SET status = 'CANCELED', claim_token = NULL,"
            " locked_by_worker_id = NULL, locked_at = NULL, lock_expires_at = NULL",
        )
