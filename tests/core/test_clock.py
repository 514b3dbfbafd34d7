"""Case 10: whatever a process believes the time to be, in either direction, only the database's clock decides."""

import ast
from datetime import timedelta
from pathlib import Path

import pytest

import docgrid_core
from docgrid_core import maintenance
from docgrid_core.database import Database
from docgrid_core.errors import LeaseExpired, WorkerFenced
from docgrid_core.records import EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import attempts, claim, complete, documents, fail, leases, release, workers
from docgrid_core.store.leases import Renewal
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Stage
from docgrid_core.testing.invariants import violations
from support import races, tables
from support.transactions import BROKEN, CONTENT

SKEWS = [timedelta(minutes=10), timedelta(minutes=-10)]
BOUND = timedelta(minutes=2)
POLICY = RetryPolicy()

# Column defaults are bound to the real now() when a table is made; the protocol's own statements are not.
WRITTEN = {
    "embedding_jobs": ("created_at", "updated_at", "locked_at", "started_at", "completed_at", "failed_at"),
    "embedding_job_attempts": ("started_at", "ended_at", "updated_at"),
    "indexing_events": ("occurred_at",),
    "document_versions": ("created_at", "updated_at", "indexed_at"),
    "embeddings": ("created_at",),
    "worker_nodes": ("started_at", "last_heartbeat_at", "stopped_at"),
}

CLOCK_CALLS = {"now", "utcnow", "today", "time", "localtime", "gmtime"}


def skew_clock(db: Database, skew: timedelta) -> None:
    """Let the server's clock differ from that of this process, for sessions that begin from now on."""
    name = tables.value(db, "SELECT current_database()")
    functions = " ".join(
        f"CREATE FUNCTION skewed.{function}() RETURNS timestamptz LANGUAGE sql VOLATILE"
        f" AS $$ SELECT pg_catalog.{function}() + interval '{skew.total_seconds()} seconds' $$;"
        for function in ("clock_timestamp", "statement_timestamp", "now")
    )
    tables.change(
        db,
        f"CREATE SCHEMA skewed; {functions}"
        f' ALTER DATABASE "{name}" SET search_path = skewed, public, pg_catalog',
    )


@pytest.mark.parametrize("skew", SKEWS, ids=["behind", "ahead"])
def test_a_worker_whose_clock_is_ten_minutes_off_is_served_as_any_other(
    db: Database, database_settings: DatabaseSettings, model: EmbeddingModel, skew: timedelta
) -> None:
    skew_clock(db, skew)
    with races.connected(database_settings) as skewed:
        # 1. A whole life: leases of five minutes, far less than the clocks differ.
        run = factories.run(skewed, Stage.VECTORS_STORED, document=factories.register(skewed, "a", "old"))
        assert leases.renew(skewed, run.worker, [run.claim], lease_duration=LEASE) == {
            run.claim.job_id: Renewal.RENEWED
        }
        assert maintenance.recover(skewed, limit=10, policy=POLICY).settled == 0
        complete.complete(skewed, run.own)
        # 2. Failure, deferral and release.
        for end in ("retried", "final", "deferred", "released"):
            run = factories.run(skewed, Stage.CHUNKS_STORED)
            if end == "deferred":
                release.defer(
                    skewed, run.own, factories.DEFERRAL, wait=LEASE, max_deferral=3 * LEASE, policy=POLICY
                )
            elif end == "released":
                release.release(skewed, run.claim, reason="shutdown")
                documents.delete(skewed, run.document.document_id, reason="", by="test")
            else:
                report = BROKEN if end == "retried" else CONTENT
                fail.fail(skewed, run.own, report, policy=POLICY)
        # 3. What has waited is not due yet by the server's clock, and workers are alive by it.
        assert claim.promote(skewed) == 0
        now = workers.read_clock(skewed)
        assert workers.mark_overdue(skewed, watched_since=now - timedelta(hours=1)) == []
        assert workers.heartbeat(skewed, run.worker, running_jobs=0) is not None
        workers.stop(skewed, run.worker)
    assert violations(db) == []
    real = workers.read_clock(db)
    for table, columns in WRITTEN.items():
        for column in columns:
            for row in tables.fetch(db, f"SELECT {column} AS at FROM {table} WHERE {column} IS NOT NULL"):  # noqa: S608
                assert abs(row.at - real - skew) < BOUND, f"{table}.{column} is of another clock"


@pytest.mark.parametrize("skew", SKEWS, ids=["behind", "ahead"])
def test_expiry_and_death_are_judged_by_the_servers_clock(
    db: Database, database_settings: DatabaseSettings, skew: timedelta
) -> None:
    skew_clock(db, skew)
    with races.connected(database_settings) as skewed:
        run = factories.run(skewed)
        # Expired, and silent, by a minute of the server's time: by this process's it is still long to go, or long ago.
        tables.change(
            skewed,
            "UPDATE embedding_jobs SET locked_at = clock_timestamp() - interval '1 hour',"
            " lock_expires_at = clock_timestamp() - interval '1 minute'",
        )
        tables.change(
            skewed, "UPDATE worker_nodes SET last_heartbeat_at = clock_timestamp() - interval '1 minute'"
        )
        with pytest.raises(LeaseExpired):
            attempts.start(skewed, run.claim)
        assert leases.renew(skewed, run.worker, [run.claim], lease_duration=LEASE) == {
            run.claim.job_id: Renewal.LOST
        }
        with pytest.raises(WorkerFenced):
            factories.claim_one(skewed, run.worker)
        now = workers.read_clock(skewed)
        (marked,) = workers.mark_overdue(skewed, watched_since=now - timedelta(hours=1))
        assert marked.id == run.worker.id
        assert maintenance.recover(skewed, limit=10, policy=POLICY).retried == 1
        tables.change(
            skewed, "UPDATE embedding_jobs SET next_retry_at = clock_timestamp() - interval '1 second'"
        )
        assert claim.promote(skewed) == 1


def test_no_code_of_the_core_reads_a_clock_of_the_process() -> None:
    """Only the monotonic one, for how long to wait."""
    found = []
    for path in sorted(Path(docgrid_core.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in CLOCK_CALLS:
                owner = node.value
                if isinstance(owner, ast.Name) and owner.id in {"datetime", "date", "time"}:
                    found.append(f"{path.name}:{node.lineno}")
    assert found == []
