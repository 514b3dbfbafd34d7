"""Quarantine, and batches: no job that can not be recovered hides another, however many there are."""

import time
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import text

from docgrid_core import maintenance
from docgrid_core.database import Database
from docgrid_core.errors import Busy, DocGridError, InternalError
from docgrid_core.jobs import JobId
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import claim, decisions, recovery, release
from docgrid_core.store.recovery import RecoveryReport
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Stage
from support import races, tables

POLICY = RetryPolicy(initial_delay=timedelta(seconds=10), max_delay=timedelta(minutes=5), jitter=0)


NOTHING = RecoveryReport()


def recover(db: Database, limit: int = 100) -> RecoveryReport | None:
    return recovery.recover_batch(db, limit=limit, policy=POLICY)


def forbid(db: Database, job_id: JobId, condition: str = "true") -> None:
    """Let the database refuse every change of a job under a condition on its new row."""
    tables.change(
        db,
        f"""
        CREATE OR REPLACE FUNCTION forbid() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION 'a row like this breaks something' USING ERRCODE = 'data_exception'; END $$;
        CREATE TRIGGER forbid_{job_id} BEFORE UPDATE ON embedding_jobs FOR EACH ROW
        WHEN (NEW.id = {job_id} AND {condition}) EXECUTE FUNCTION forbid()
        """,
    )


def test_one_recoverer_works_while_the_others_idle(db: Database, database_settings: DatabaseSettings) -> None:
    run = factories.run(db)
    tables.expire_lease(db, run.claim.job_id)
    with races.connected(database_settings) as other:
        with races.Frozen(other, partial(recover, other), before=2) as frozen:
            assert recover(db) is None
            assert maintenance.recover(db, limit=10, policy=POLICY) == NOTHING
        assert frozen.call.result() == RecoveryReport(retried=1)


def test_recoverers_at_once_recover_each_job_once(db: Database, database_settings: DatabaseSettings) -> None:
    runs = [factories.run(db) for _ in range(30)]
    for run in runs:
        tables.expire_lease(db, run.claim.job_id)
    with races.connected(database_settings) as other:
        outcomes = races.together(
            [partial(maintenance.recover, pool, limit=4, policy=POLICY) for pool in (db, other, db, other)]
        )
    assert races.faults(outcomes) == []
    maintenance.recover(db, limit=4, policy=POLICY)
    for run in runs:
        assert tables.events(db, run.claim.job_id)[2:] == ["LEASE_EXPIRED", "RETRY"]
        assert tables.job(db, run.claim.job_id).retry_count == 1


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE document_versions SET status = 'FAILED'",
        "UPDATE document_versions SET status = 'CANCELED'",
        "UPDATE document_versions SET status = 'INDEXED', indexed_at = now()",
        "UPDATE documents SET status = 'DELETED', deleted_at = now()",
        "UPDATE embedding_job_attempts SET claim_token = gen_random_uuid()",
    ],
    ids=["version failed", "version canceled", "version indexed", "document deleted", "foreign attempt"],
)
def test_a_job_whose_rows_disagree_is_put_in_quarantine(db: Database, damage: str) -> None:
    run = factories.run(db, Stage.VECTORS_STORED)
    tables.change(db, damage)
    state = tables.version(db, run.claim.job_id).status
    tables.expire_lease(db, run.claim.job_id)

    assert recover(db) == RecoveryReport(failed=1)

    job = tables.job(db, run.claim.job_id)
    assert (job.status, job.error_code) == ("FAILED", "INDEXING_STATE_INCONSISTENT")
    assert job.error_message == decisions.QUARANTINED_MESSAGE
    (attempt,) = tables.attempts(db, run.claim.job_id)
    assert (attempt.status, attempt.failure_type) == ("FAILED", "INDEXING_STATE_INCONSISTENT")
    # A version that is not final fails with it, so that the document is not blocked; a final one stays.
    in_flight = state == "EMBEDDING"
    assert tables.version(db, run.claim.job_id).status == ("FAILED" if in_flight else state)
    assert tables.vectors(db, run.claim.job_id) == {"STALE" if in_flight else "ACTIVE": 3}
    assert recover(db) == NOTHING


def test_the_same_bytes_can_be_registered_again_after_a_quarantine(db: Database) -> None:
    run = factories.run(db, document=factories.register(db, "a", "content"))
    tables.change(db, "UPDATE embedding_job_attempts SET claim_token = gen_random_uuid()")
    tables.expire_lease(db, run.claim.job_id)
    recover(db)
    assert factories.register(db, "a", "content").outcome == "created"
    factories.advance(db, factories.start_next(db), Stage.COMPLETED)


@pytest.mark.parametrize("broken", [1, 3])
def test_jobs_behind_a_batch_that_can_not_be_recovered_still_are(db: Database, broken: int) -> None:
    """Case 7: the first full batches fail; those jobs are put in quarantine, the ones behind them recovered."""
    runs = [factories.run(db) for _ in range(6)]
    for number, run in enumerate(runs):
        tables.expire_lease(db, run.claim.job_id)
        if number < broken:
            forbid(db, run.claim.job_id, "NEW.status = 'PENDING'")
    with pytest.raises(InternalError):
        recover(db, limit=2)

    assert maintenance.recover(db, limit=2, policy=POLICY) == RecoveryReport(
        retried=6 - broken, failed=broken
    )

    for number, run in enumerate(runs):
        job = tables.job(db, run.claim.job_id)
        assert job.status == ("FAILED" if number < broken else "PENDING")
    assert maintenance.recover(db, limit=2, policy=POLICY) == NOTHING, "it does not come back every cycle"


def test_a_job_that_can_not_even_be_put_in_quarantine_hides_no_other(db: Database) -> None:
    """Case 7, at its worst: the database refuses every change of the first two jobs."""
    runs = [factories.run(db) for _ in range(5)]
    for number, run in enumerate(runs):
        tables.expire_lease(db, run.claim.job_id)
        if number < 2:
            forbid(db, run.claim.job_id)

    for expected in (3, 0):
        assert maintenance.recover(db, limit=2, policy=POLICY) == RecoveryReport(retried=expected)
    assert [tables.job(db, run.claim.job_id).status for run in runs] == ["PROCESSING"] * 2 + ["PENDING"] * 3


def test_quarantine_leaves_a_job_alone_that_recovered_meanwhile(db: Database) -> None:
    """Between a failed recovery and its quarantine another process may settle the job, and a worker claim it."""
    run = factories.run(db)
    release.release(db, run.claim, reason="shutdown")
    assert recovery.quarantine_one(db, run.claim.job_id) == NOTHING
    again = factories.run(db, document=run.document)
    before = tables.dump(db)
    assert recovery.quarantine_one(db, run.claim.job_id) == NOTHING
    assert recovery.recover_one(db, run.claim.job_id, policy=POLICY) == NOTHING
    assert tables.dump(db) == before
    factories.advance(db, again.own, Stage.COMPLETED)
    assert recovery.recover_one(db, run.claim.job_id, policy=POLICY) == NOTHING


def test_a_lock_that_can_not_be_had_ends_the_tick_and_quarantines_nobody(
    db: Database, database_settings: DatabaseSettings
) -> None:
    run = factories.run(db)
    tables.expire_lease(db, run.claim.job_id)
    with (
        races.connected(database_settings, lock_timeout=timedelta(milliseconds=20)) as impatient,
        db._engine.begin() as holder,
    ):
        holder.execute(text("SELECT FROM documents FOR NO KEY UPDATE"))
        with pytest.raises(DocGridError, match="COMMON-005"):
            maintenance.recover(impatient, limit=10, policy=POLICY)
    assert tables.job(db, run.claim.job_id).status == "PROCESSING"
    assert maintenance.recover(db, limit=10, policy=POLICY) == RecoveryReport(retried=1)


@pytest.mark.parametrize("busy_on", ["its recovery", "its quarantine"])
def test_a_job_that_is_busy_when_it_is_settled_alone_waits_for_the_next_tick(
    db: Database, busy_on: str
) -> None:
    """First it breaks its batch, then its lock can not be had: that is no reason to end it."""
    run = factories.run(db)
    tables.expire_lease(db, run.claim.job_id)
    broken = "nextval('tries') = 1" if busy_on == "its recovery" else "NEW.status = 'PENDING'"
    tables.change(
        db,
        f"""
        CREATE SEQUENCE tries;
        CREATE FUNCTION stumble() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          IF {broken} THEN RAISE 'broken' USING ERRCODE = 'data_exception'; END IF;
          RAISE 'busy' USING ERRCODE = 'lock_not_available';
        END $$;
        CREATE TRIGGER stumble BEFORE UPDATE ON embedding_jobs FOR EACH ROW EXECUTE FUNCTION stumble()
        """,
    )
    with pytest.raises(Busy):
        maintenance.recover(db, limit=10, policy=POLICY)
    tables.change(db, "DROP TRIGGER stumble ON embedding_jobs")
    assert maintenance.recover(db, limit=10, policy=POLICY) == RecoveryReport(retried=1)


def test_10_000_expired_leases_are_recovered_in_seconds(db: Database) -> None:
    """The benchmark asks for 2 s; here only that nothing grows with the square of their number."""
    worker = factories.register_worker(db)
    fill_queue(db, worker.model.id, 10_000)
    for _ in range(10):
        assert len(claim.claim(db, worker, limit=1000, lease_duration=LEASE).claims) == 1000
    tables.change(
        db,
        "INSERT INTO embedding_job_attempts (embedding_job_id, worker_node_id, attempt_no, claim_token, status,"
        " started_at) SELECT id, locked_by_worker_id, 1, claim_token, 'STARTED', now() FROM embedding_jobs",
    )
    tables.change(
        db,
        "UPDATE embedding_jobs SET locked_at = now() - interval '1 hour', lock_expires_at = now() - interval '1 s'",
    )
    tables.change(db, "ANALYZE")

    started = time.monotonic()
    report = maintenance.recover(db, limit=500, policy=POLICY)

    assert report == RecoveryReport(retried=10_000)
    assert time.monotonic() - started < 20
    assert tables.value(db, "SELECT count(*) FROM indexing_events WHERE event_type = 'RETRY'") == 10_000


def fill_queue(db: Database, model_id: int, number: int) -> None:
    """Insert documents whose jobs are pending, as registration leaves them."""
    factories.register(db)
    tables.change(
        db,
        """
        WITH document AS (
          INSERT INTO documents (source_uri, title, document_type, status)
          SELECT 'bulk/' || n, '', 'TXT', 'UPLOADED' FROM generate_series(2, :number) AS n RETURNING id
        ), version AS (
          INSERT INTO document_versions (document_id, version_no, file_object_id, original_filename, content_type,
                                         file_hash, status)
          SELECT document.id, 1, f.id, '', '', f.file_hash, 'UPLOADED' FROM document, file_objects f RETURNING id
        )
        INSERT INTO embedding_jobs (document_version_id, embedding_model_id, status)
        SELECT id, :model_id, 'PENDING' FROM version
        """,
        number=number,
        model_id=model_id,
    )
