"""Case 13: bulk transactions overlap single ones in every order, and the server never has to break a deadlock."""

import random
from collections.abc import Callable
from functools import partial

from docgrid_core import maintenance
from docgrid_core.database import Database
from docgrid_core.errors import RefusedError
from docgrid_core.jobs import DocumentId, FailureType, JobId, StopReason
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import (
    attempts,
    claim,
    control,
    documents,
    fail,
    release,
    workers,
)
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Stage
from docgrid_core.testing.invariants import violations
from support import races, tables

POLICY = RetryPolicy()
DOCUMENTS = 6
ROUNDS = 120
THREADS = 6


def test_no_deadlock_arises_while_everybody_does_everything_at_once(
    db: Database, database_settings: DatabaseSettings
) -> None:
    for number in range(DOCUMENTS):
        factories.register(db, f"document {number}")
    with races.connected(database_settings) as other:
        lives = [
            partial(live, pool, random.Random(seed)) for seed, pool in enumerate([db, other] * (THREADS // 2))
        ]
        outcomes = races.together(lives)
    assert races.faults(outcomes) == []
    tables.change(db, "SELECT pg_stat_clear_snapshot()")
    database = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    assert tables.value(db, database) == 0
    assert violations(db) == []


def live(db: Database, chance: random.Random) -> None:
    """Make calls in a random order; each may be refused, none may fail."""
    calls: list[Callable[[Database, random.Random], object]] = [
        run_a_job,
        run_a_job,
        register,
        recover,
        end_a_worker,
        delete_or_control,
    ]
    for _ in range(ROUNDS):
        try:
            chance.choice(calls)(db, chance)
        except RefusedError:
            continue


def run_a_job(db: Database, chance: random.Random) -> None:
    worker = factories.register_worker(db, pod_uid=f"pod {chance.randrange(4)}")
    for item in claim.claim(db, worker, limit=2, lease_duration=LEASE).claims:
        own = attempts.start(db, item).ownership
        end = chance.randrange(4)
        if end == 0:
            report = fail.Report(
                chance.choice([FailureType.WORKER_INTERNAL_ERROR, FailureType.EMBEDDING_RESULT_INVALID]), ""
            )
            fail.fail(db, own, report, policy=POLICY)
        elif end == 1:
            release.release(db, item, reason="")
        else:
            factories.advance(db, own, Stage.COMPLETED)


def register(db: Database, chance: random.Random) -> None:
    name = f"document {chance.randrange(DOCUMENTS)}"
    documents.register(db, factories.source(name, f"content {chance.randrange(3)}"), supersede=True)


def recover(db: Database, _chance: random.Random) -> None:
    tables.come_due(db)
    claim.promote(db)
    maintenance.recover(db, limit=3, policy=POLICY)


def end_a_worker(db: Database, chance: random.Random) -> None:
    reason = chance.choice([StopReason.ERROR, StopReason.EVICTED, StopReason.NODE_LOST])
    workers.mark_pod_ended(db, pod_uid=f"pod {chance.randrange(4)}", reason=reason)
    workers.mark_overdue(db, watched_since=workers.read_clock(db) - LEASE)


def delete_or_control(db: Database, chance: random.Random) -> None:
    rows = tables.fetch(
        db,
        "SELECT j.id, v.document_id FROM embedding_jobs j JOIN document_versions v ON v.id = j.document_version_id"
        " ORDER BY j.id DESC LIMIT 10",
    )
    row = chance.choice(rows)
    act = chance.randrange(3)
    if act == 0:
        documents.delete(db, DocumentId(row.document_id), reason="", by="test")
    elif act == 1:
        control.cancel(db, JobId(row.id), reason="", by="test")
    else:
        control.retry(db, JobId(row.id), reason="", by="test")
