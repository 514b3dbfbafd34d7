"""The plans of the hot statements with millions of rows around: index ranges, nothing that grows with the queue.

A million ready jobs, a million ended ones and 100,000 delayed; the ended ones are newer than what waits, which is
the worst order for every list. Each statement runs under EXPLAIN ANALYZE and is rolled back: what counts is how
many rows it touched. Before the first ANALYZE too, when the planner knows nothing of the rows.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import TextClause, text

from docgrid_core.database import Database, Transaction
from docgrid_core.jobs import JOB_LIVE, DocumentId, FailureType, JobStatus, StopReason
from docgrid_core.settings import MaintenanceSettings
from docgrid_core.store import claim, leases, models, prune, recovery, workers
from docgrid_core.store.queries import COUNT_LIMIT, JobFilter, documents, jobs, queue, views
from docgrid_core.store.workers import RegisteredWorker
from docgrid_core.testing import factories
from support import races, tables
from support.database import Template, create_database, drop_database, settings_of

# A million of each takes half a minute to make, on two cores with others at work: no need for fewer.
READY = 1_000_000
ENDED = 1_000_000
DELAYED = 100_000
PROCESSING = 2_000
EXPIRED = 100
DOCUMENTS = 20_000

# Foreign keys are not checked in a replica's session: the jobs need no versions of their own.
FILL = """
    SET LOCAL session_replication_role = replica;
    ALTER TABLE embedding_jobs SET (autovacuum_enabled = false);

    INSERT INTO embedding_jobs (document_version_id, embedding_model_id, status, priority, created_at, next_retry_at)
    SELECT n, 1, 'PENDING', n % 7, now() - n * interval '1 ms',
           CASE WHEN n > :ready THEN now() + (n - :ready - 1000) * interval '1 second' END
    FROM generate_series(1, :ready + :delayed) AS n;

    INSERT INTO embedding_jobs (document_version_id, embedding_model_id, status, locked_by_worker_id, claim_token,
                                locked_at, lock_expires_at)
    SELECT 2000000 + n, 1, 'PROCESSING',
           CASE WHEN n <= 100 THEN :dead WHEN n <= 110 THEN :small ELSE 1000 + n % 100 END,
           gen_random_uuid(), now() - interval '1 hour',
           now() + CASE WHEN n <= :expired THEN interval '-1 minute' ELSE interval '1 hour' END
    FROM generate_series(1, :processing) AS n;

    INSERT INTO embedding_jobs (document_version_id, embedding_model_id, status, locked_by_worker_id, claim_token,
                                completed_at, failed_at, error_code, updated_at)
    SELECT 3000000 + n, 1, state,
           CASE WHEN state <> 'CANCELED' THEN
             CASE WHEN n > :ended - 200 THEN :small ELSE 1000 + n % 200 END END,
           CASE WHEN state <> 'CANCELED' THEN gen_random_uuid() END,
           CASE WHEN state = 'INDEXED' THEN at END, CASE WHEN state = 'FAILED' THEN at END,
           'DOCUMENT_CONTENT_INVALID', at
    FROM generate_series(1, :ended) AS n
    CROSS JOIN LATERAL (
      SELECT CASE n % 20 WHEN 0 THEN 'FAILED' WHEN 1 THEN 'CANCELED' ELSE 'INDEXED' END AS state,
             now() - n * interval '5 ms' AS at) AS ended;

    INSERT INTO documents (source_uri, title, document_type, status, deleted_at)
    SELECT 'u' || n, 't', 'TXT', CASE WHEN n % 2 = 0 THEN 'DELETED' ELSE 'UPLOADED' END,
           CASE WHEN n % 2 = 0 THEN now() END
    FROM generate_series(1, :documents) AS n
"""

INDEXES = """
    SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'embedding_jobs' AND indexname NOT LIKE '%pkey'
"""


@dataclass(frozen=True, slots=True)
class Hot:
    """A statement, its parameters, and the most rows that one of its scans may touch."""

    statement: TextClause
    parameters: Mapping[str, Any]
    most: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """Workers: `idle` and `other` (of another model) hold no job, `small` a few, `dead` some; 200 more the rest."""

    idle: RegisteredWorker
    other: RegisteredWorker
    small: RegisteredWorker
    dead: RegisteredWorker


@pytest.fixture
def full(postgres_url: str, migrated_template: Template) -> Iterator[tuple[Database, Fleet]]:
    """Yield a database with millions of jobs, not analyzed yet."""
    name = create_database(postgres_url, template=migrated_template.name)
    try:
        limit = timedelta(minutes=5)
        with races.connected(settings_of(postgres_url, name), statement_timeout=limit) as db:
            yield db, fill(db)
    finally:
        drop_database(postgres_url, name)


def fill(db: Database) -> Fleet:
    models.add(db, provider="builtin", name="other", version="1", dimension=8, config={})
    pods = {pod: factories.register_worker(db, pod_uid=pod) for pod in ("idle", "small", "dead")}
    fleet = Fleet(other=workers.register(db, replace(factories.identity(), model="other")), **pods)
    workers.mark_pod_ended(db, pod_uid="dead", reason=StopReason.ERROR)
    values = {
        "ready": READY,
        "delayed": DELAYED,
        "processing": PROCESSING,
        "ended": ENDED,
        "expired": EXPIRED,
        "documents": DOCUMENTS,
        "small": fleet.small.id,
        "dead": fleet.dead.id,
    }

    def insert(tx: Transaction) -> None:
        # Indexes are built after the rows: in a quarter of the time.
        indexes = tx.execute(text(INDEXES)).all()
        for index, _ in indexes:
            tx.execute(text(f"DROP INDEX {index}"))
        for statement in FILL.split(";"):
            names = re.findall(r":([a-z]+)", statement)
            tx.execute(text(statement), **{key: values[key] for key in names})
        for _, definition in indexes:
            tx.execute(text(definition))

    db.run(insert)
    return fleet


def hot_statements(fleet: Fleet) -> dict[str, Hot]:
    by = {
        "worker_id": fleet.idle.id,
        "instance_id": fleet.idle.instance_id,
        "lease_duration": timedelta(minutes=5),
    }
    others = {**by, "worker_id": fleet.other.id, "instance_id": fleet.other.instance_id}
    settings = MaintenanceSettings()
    hot = {
        "claim one": Hot(claim.CLAIM, by | {"limit": 1}, 1),
        "claim fifty": Hot(claim.CLAIM, by | {"limit": 50}, 50),
        "claim from an empty queue": Hot(claim.CLAIM, others | {"limit": 50}, 0),
        "promote": Hot(claim.PROMOTE, {"limit": 500}, 500),
        "release unknown claims": Hot(claim.LOCK_UNKNOWN, {"worker_id": fleet.small.id, "known": []}, 10),
        "recover": Hot(recovery.LOCK_CANDIDATES, {"limit": 500, "excluded": []}, 110),
        "renew": Hot(leases.RENEW, by | {"job_ids": [1, 2], "tokens": [uuid.uuid4(), uuid.uuid4()]}, 2),
        "list the jobs of a document": list_of(JobFilter(document_id=DocumentId(1)), most=1),
        "list the jobs of a worker": list_of(JobFilter(worker_id=fleet.small.id), most=210),
        "list what one worker runs": list_of(
            JobFilter(worker_id=fleet.small.id, status=JobStatus.PROCESSING), most=10
        ),
        "list by failure": list_of(JobFilter(failure_type=FailureType.DOCUMENT_CONTENT_INVALID), most=51),
        "list documents": Hot(documents.LIST_IDS, {"limit": 50, "offset": 0}, 50),
        "count documents": Hot(documents.LIST_IDS, {"limit": COUNT_LIMIT + 1, "offset": 0}, COUNT_LIMIT + 1),
        "queue depth": Hot(queue.DEPTH, {"limit": COUNT_LIMIT + 1}, COUNT_LIMIT + 1),
        "failed by model": Hot(queue.FAILED, {"limit": COUNT_LIMIT + 1}, COUNT_LIMIT + 1),
        "indexed by minute": Hot(queue.INDEXED, {"limit": COUNT_LIMIT + 1, "minutes": 5}, COUNT_LIMIT + 1),
        "prune indexed jobs": Hot(prune.DELETE_INDEXED_JOBS, {"limit": 500, "keep": timedelta(0)}, 500),
        "prune nothing": Hot(prune.DELETE_FAILED_JOBS, {"limit": 500, "keep": settings.keep_failed}, 0),
    }
    hot |= window(500)
    for status in (None, *JobStatus):
        wanted, name = JobFilter(status=status), f"jobs {status or 'of any state'}"
        # What is PROCESSING is few, and stands between what waits.
        few = PROCESSING if status in JOB_LIVE else 0
        hot |= {
            f"list {name}": list_of(wanted, most=51 + few),
            f"list the last page of {name}": list_of(
                wanted, offset=COUNT_LIMIT - 50, most=COUNT_LIMIT + 1 + few
            ),
            f"count {name}": list_of(wanted, limit=COUNT_LIMIT + 1, most=COUNT_LIMIT + 2 + few),
        }
    return hot


def window(limit: int) -> dict[str, Hot]:
    """Return what the views of a window of this size are read by; `keep` holds ended jobs, newest first."""
    only = {"limit": limit}
    keep = list(range(READY + DELAYED + PROCESSING + 1, READY + DELAYED + PROCESSING + 1 + limit))
    return {
        "window of what runs": Hot(views.PROCESSING, only, PROCESSING),
        "window of what has just ended": Hot(
            views.JUST_FINISHED, only | {"keep": keep, "linger": timedelta(minutes=1)}, limit
        ),
        "window of failures": Hot(views.FAILED, only, limit),
        "window of what runs next": Hot(views.READY, only, limit),
        "window of what is delayed": Hot(views.DELAYED, only, limit),
        "window of what is done": Hot(views.INDEXED, only, limit),
        "describe a window": Hot(views.DESCRIBE, {"ids": keep}, limit),
    }


def list_of(wanted: JobFilter, *, most: int, limit: int = 50, offset: int = 0) -> Hot:
    page = {"limit": limit, "offset": offset}
    return Hot(jobs.matching(wanted), jobs.parameters(wanted) | page, most)


def explain(db: Database, hot: Hot) -> list[dict[str, Any]]:
    """Run a statement and roll it back; return the nodes of its plan."""
    nodes: list[dict[str, Any]] = []

    def collect(node: dict[str, Any]) -> None:
        nodes.append(node)
        for child in node.get("Plans", ()):
            collect(child)

    def run(tx: Transaction) -> None:
        statement = text(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {hot.statement.text}")
        plan = tx.execute(statement, **hot.parameters).scalar_one()
        collect((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
        tx.connection.rollback()

    db.run(run)
    return nodes


def complaints(nodes: list[dict[str, Any]], hot: Hot) -> list[str]:
    """Return what of a plan grows with the queue."""
    found = []
    for node in nodes:
        kind = node["Node Type"]
        touched = node["Actual Loops"] * sum(
            node.get(key, 0)
            for key in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
        )
        relation = node.get("Relation Name", node.get("Index Name", ""))
        if relation.startswith(("embedding_jobs", "documents")) and "Scan" in kind:
            if kind == "Seq Scan":
                found.append(f"Seq Scan on {relation}")
            if touched > hot.most:
                found.append(f"{kind} on {node.get('Index Name', relation)} touches {touched:.0f} rows")
        if kind == "Sort":
            # The CTEs of a statement hang on its topmost node, whatever that is: they are not what it sorts.
            inputs = [child for child in node["Plans"] if child["Parent Relationship"] == "Outer"]
            if (fed := sum(child["Actual Rows"] for child in inputs)) > max(hot.most, 10):
                found.append(f"Sort of {fed:.0f} rows")
    return found


PROTOCOL = {"claim one", "claim fifty", "claim from an empty queue", "promote", "renew"}
"""What must not wait for the first ANALYZE of a queue that has grown at once."""


@pytest.mark.timeout(300)
def test_no_hot_statement_touches_more_rows_than_it_answers(full: tuple[Database, Fleet]) -> None:
    db, fleet = full
    hot = hot_statements(fleet)

    fresh = {name: complaints(explain(db, hot[name]), hot[name]) for name in PROTOCOL}
    tables.change(db, "ANALYZE embedding_jobs, documents")
    analyzed = {name: complaints(explain(db, statement), statement) for name, statement in hot.items()}

    assert {name: wrong for name, wrong in fresh.items() if wrong} == {}
    assert {name: wrong for name, wrong in analyzed.items() if wrong} == {}
