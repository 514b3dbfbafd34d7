"""The window: the jobs that the IndexingJob views show, however many there are in the queue.

Called by the operator every few seconds, so it must be cheap beside a queue of millions, and steady: nothing in a
row changes by itself (no lease, no heartbeat, no age), and no job comes into the window or leaves it while nothing
happens to a job. Else the mirror in Kubernetes would be written all the time.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import islice

from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.jobs import JobId, JobStatus, ModelId
from docgrid_core.store.queries.answers import build, read_snapshot

# What is PROCESSING is few. The longest running ones first: they stay in the window until they end.
PROCESSING = text(
    "SELECT id FROM embedding_jobs WHERE status = 'PROCESSING' ORDER BY locked_at, id LIMIT :limit"
)

_FINISHED_AT = """
    CASE j.status WHEN 'INDEXED' THEN j.completed_at WHEN 'FAILED' THEN j.failed_at
                  WHEN 'CANCELED' THEN j.updated_at END
"""

# The only way for a CANCELED job to be shown.
JUST_FINISHED = text(
    f"""
    SELECT j.id FROM embedding_jobs j
    WHERE j.id = ANY (CAST(:keep AS bigint[])) AND {_FINISHED_AT} > clock_timestamp() - :linger
    ORDER BY {_FINISHED_AT} DESC, j.id
    LIMIT :limit
    """  # noqa: S608 - composed of constants
)

FAILED = text("SELECT id FROM embedding_jobs WHERE status = 'FAILED' ORDER BY failed_at DESC LIMIT :limit")

# The claim's order, of each model a range of the index; so many of each at most are merged.
READY = text(
    """
    SELECT j.id
    FROM embedding_models m
    CROSS JOIN LATERAL (
      SELECT id, suspect, priority, created_at FROM embedding_jobs
      WHERE status = 'PENDING' AND next_retry_at IS NULL AND embedding_model_id = m.id
      ORDER BY suspect, priority DESC, created_at, id
      LIMIT :limit
    ) AS j
    ORDER BY j.suspect, j.priority DESC, j.created_at, j.id
    LIMIT :limit
    """
)

DELAYED = text(
    """
    SELECT j.id
    FROM embedding_models m
    CROSS JOIN LATERAL (
      SELECT id, next_retry_at FROM embedding_jobs
      WHERE status = 'PENDING' AND next_retry_at IS NOT NULL AND embedding_model_id = m.id
      ORDER BY next_retry_at
      LIMIT :limit
    ) AS j
    ORDER BY j.next_retry_at
    LIMIT :limit
    """
)

INDEXED = text(
    "SELECT id FROM embedding_jobs WHERE status = 'INDEXED' ORDER BY completed_at DESC LIMIT :limit"
)

# Versions and documents are found by their keys, one by one: a join might read the whole table for a window.
DESCRIBE = text(
    f"""
    SELECT j.id AS job_id, d.source_uri, d.title, v.version_no, m.id AS model_id, m.model_name, m.model_version,
           j.priority, j.status, coalesce(a.attempt_no, 0) AS attempts, j.retry_count, j.max_retry_count,
           coalesce(nullif(w.pod_name, ''), w.worker_name) AS worker,
           nullif(w.indexing_worker, '') AS indexing_worker, j.next_retry_at, j.error_code, j.error_message,
           j.created_at, j.started_at, {_FINISHED_AT} AS finished_at
    FROM embedding_jobs j
    CROSS JOIN LATERAL (
      SELECT document_id, version_no FROM document_versions WHERE id = j.document_version_id LIMIT 1
    ) AS v
    CROSS JOIN LATERAL (SELECT source_uri, title FROM documents WHERE id = v.document_id LIMIT 1) AS d
    JOIN embedding_models m ON m.id = j.embedding_model_id
    LEFT JOIN worker_nodes w ON w.id = j.locked_by_worker_id
    LEFT JOIN LATERAL (
      SELECT attempt_no FROM embedding_job_attempts WHERE embedding_job_id = j.id ORDER BY attempt_no DESC LIMIT 1
    ) AS a ON true
    WHERE j.id = ANY (CAST(:ids AS bigint[]))
    """  # noqa: S608 - composed of constants
)


@dataclass(frozen=True, slots=True)
class ViewRow:
    """One job as its view shows it.

    `worker` is the pod (outside Kubernetes the name) of who holds the job or ended it, `indexing_worker` the name
    of its pool; `attempts` counts executions, `retry_count` those that cost a retry.
    """

    job_id: JobId
    source_uri: str = field(repr=False)
    title: str = field(repr=False)
    version_no: int
    model_id: ModelId
    model_name: str
    model_version: str
    priority: int
    status: JobStatus
    attempts: int
    retry_count: int
    max_retry_count: int
    worker: str | None
    indexing_worker: str | None
    next_retry_at: datetime | None
    error_code: str | None
    error_message: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@transactional
def view_window(
    tx: Transaction, *, limit: int, keep: Collection[JobId] = (), linger: timedelta = timedelta(0)
) -> list[ViewRow]:
    """Return the jobs to show, at most `limit`, the most wanted first.

    That is: what is PROCESSING; of `keep`, the jobs shown before, those that ended less than `linger` ago; the
    newest FAILED; the PENDING that run next, ready ones before delayed ones; the newest INDEXED.
    """
    read_snapshot(tx)
    ids = list(islice(_wanted(tx, limit=limit, keep=keep, linger=linger), limit))
    rows = tx.execute(DESCRIBE, ids=ids).mappings()
    found = {row["job_id"]: build(ViewRow, row, status=JobStatus) for row in rows}
    return [found[job_id] for job_id in ids if job_id in found]


def _wanted(tx: Transaction, *, limit: int, keep: Collection[JobId], linger: timedelta) -> Iterator[JobId]:
    """Yield every job that may be shown once, the most wanted first; a kind is read when there is room for it."""
    seen: set[JobId] = set()
    for statement in (PROCESSING, JUST_FINISHED, FAILED, READY, DELAYED, INDEXED):
        parameters = {"keep": list(keep), "linger": linger} if statement is JUST_FINISHED else {}
        for job_id in tx.execute(statement, limit=limit, **parameters).scalars().all():
            if job_id not in seen:
                seen.add(job_id)
                yield job_id
