"""Retention: deleting what is too old to keep, in small batches, each a short transaction of its own.

Called by maintenance and `docgrid prune`; any number may run at once, since each skips what another has locked.
What a batch deletes can not come into use again (ended jobs are locked against a manual retry), so no batch waits
for a lock.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import TextClause, text

from docgrid_core.database import Database, Transaction, transactional
from docgrid_core.settings import MaintenanceSettings
from docgrid_core.store.models import list_models

BATCH = 500
VERSION_WINDOW = 2000

_DELETE_JOBS = """
    WITH due AS MATERIALIZED (
      SELECT id FROM embedding_jobs
      WHERE {condition}
      LIMIT :limit
      FOR UPDATE SKIP LOCKED
    ), event AS (
      DELETE FROM indexing_events WHERE embedding_job_id = ANY (ARRAY(SELECT id FROM due))
    ), attempt AS (
      DELETE FROM embedding_job_attempts WHERE embedding_job_id = ANY (ARRAY(SELECT id FROM due))
    )
    DELETE FROM embedding_jobs WHERE id = ANY (ARRAY(SELECT id FROM due))
"""
DELETE_INDEXED_JOBS = text(
    _DELETE_JOBS.format(
        condition="status = 'INDEXED' AND completed_at < statement_timestamp() - :keep ORDER BY completed_at"
    )
)
DELETE_FAILED_JOBS = text(
    _DELETE_JOBS.format(
        condition="status = 'FAILED' AND failed_at < statement_timestamp() - :keep ORDER BY failed_at"
    )
)
DELETE_CANCELED_JOBS = text(
    _DELETE_JOBS.format(
        condition="status = 'CANCELED' AND updated_at < statement_timestamp() - :keep ORDER BY updated_at"
    )
)

DELETE_STALE_EMBEDDINGS = text(
    """
    WITH due AS MATERIALIZED (
      SELECT chunk_id FROM embeddings
      WHERE embedding_model_id = :model_id AND status = 'STALE'
      ORDER BY chunk_id
      LIMIT :limit
      FOR UPDATE SKIP LOCKED
    )
    DELETE FROM embeddings
    WHERE embedding_model_id = :model_id AND chunk_id = ANY (ARRAY(SELECT chunk_id FROM due))
    """
)

# A version is done with when its document is deleted, or when it is final and not current. One exception: the
# newest version of a document, FAILED, can be retried as long as its job exists, and resumes from its chunks.
DELETE_CHUNKS = text(
    """
    WITH done AS MATERIALIZED (
      SELECT v.id
      FROM document_versions v
      JOIN documents d ON d.id = v.document_id
      WHERE v.id > :after AND v.id <= :last
        AND v.status IN ('INDEXED', 'FAILED', 'CANCELED')
        AND (d.deleted_at IS NOT NULL
             OR (v.id IS DISTINCT FROM d.current_version_id OR v.status <> 'INDEXED')
                AND NOT (v.status = 'FAILED'
                         AND EXISTS (SELECT FROM embedding_jobs j WHERE j.document_version_id = v.id)
                         AND NOT EXISTS (SELECT FROM document_versions newer
                                         WHERE newer.document_id = d.id AND newer.version_no > v.version_no)))
        AND NOT EXISTS (SELECT FROM embeddings e WHERE e.document_version_id = v.id)
    ), due AS MATERIALIZED (
      SELECT c.id FROM done JOIN document_chunks c ON c.document_version_id = done.id
      LIMIT :limit
      FOR UPDATE OF c SKIP LOCKED
    )
    DELETE FROM document_chunks WHERE id = ANY (ARRAY(SELECT id FROM due))
    """
)
LAST_OF_WINDOW = text(
    """
    SELECT max(id) FROM (SELECT id FROM document_versions WHERE id > :after ORDER BY id LIMIT :window) AS next
    """
)

DELETE_WORKERS = text(
    """
    WITH due AS MATERIALIZED (
      SELECT id FROM worker_nodes w
      WHERE status IN ('STOPPED', 'DEAD') AND stopped_at < statement_timestamp() - :keep
        AND NOT EXISTS (SELECT FROM embedding_jobs j WHERE j.locked_by_worker_id = w.id)
        AND NOT EXISTS (SELECT FROM embedding_job_attempts a WHERE a.worker_node_id = w.id)
      LIMIT :limit
      FOR UPDATE SKIP LOCKED
    )
    DELETE FROM worker_nodes WHERE id = ANY (ARRAY(SELECT id FROM due))
    """
)


@dataclass(frozen=True, slots=True)
class PruneReport:
    """How many rows went; a job's events and attempts go with it and are not counted."""

    jobs: int = 0
    embeddings: int = 0
    chunks: int = 0
    workers: int = 0

    def __add__(self, other: "PruneReport") -> "PruneReport":
        return PruneReport(
            self.jobs + other.jobs,
            self.embeddings + other.embeddings,
            self.chunks + other.chunks,
            self.workers + other.workers,
        )


def prune(db: Database, settings: MaintenanceSettings) -> PruneReport:
    """Delete everything that is due and return what went; ages are judged by the database's clock."""
    return sum(batches(db, settings), start=PruneReport())


def batches(db: Database, settings: MaintenanceSettings) -> Iterator[PruneReport]:
    """Delete what is due, one batch for each step of the iterator, so that a host can do other things between."""
    # Jobs first: an ended job holds on to its worker's row, and a FAILED one to its version's chunks.
    for statement, keep in (
        (DELETE_INDEXED_JOBS, settings.keep_indexed),
        (DELETE_FAILED_JOBS, settings.keep_failed),
        (DELETE_CANCELED_JOBS, settings.keep_failed),
    ):
        yield from (PruneReport(jobs=count) for count in _delete_all(db, statement, keep=keep))
    # Embeddings before the chunks that they refer to.
    for model in list_models(db):
        counts = _delete_all(db, DELETE_STALE_EMBEDDINGS, model_id=model.id)
        yield from (PruneReport(embeddings=count) for count in counts)
    for after, last in _version_windows(db):
        counts = _delete_all(db, DELETE_CHUNKS, after=after, last=last)
        yield from (PruneReport(chunks=count) for count in counts)
    counts = _delete_all(db, DELETE_WORKERS, keep=settings.keep_workers)
    yield from (PruneReport(workers=count) for count in counts)


def _delete_all(db: Database, statement: TextClause, **parameters: Any) -> Iterator[int]:
    """Run batches until one is not full, and yield how many rows each deleted."""
    deleted = BATCH
    while deleted == BATCH:
        deleted = _delete(db, statement, **parameters)
        yield deleted


@transactional
def _delete(tx: Transaction, /, statement: TextClause, **parameters: Any) -> int:
    return tx.execute(statement, limit=BATCH, **parameters).rowcount


def _version_windows(db: Database) -> Iterator[tuple[int, int]]:
    """Yield ranges of version ids: no index knows the versions that are done with, so all are looked at."""
    after = 0
    while (last := _last_of_window(db, after)) is not None:
        yield after, last
        after = last


@transactional
def _last_of_window(tx: Transaction, after: int) -> int | None:
    last: int | None = tx.execute(LAST_OF_WINDOW, after=after, window=VERSION_WINDOW).scalar()
    return last
