"""Lists of jobs, and one job with its attempts and its history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import TextClause, text

from docgrid_core.database import Transaction, transactional
from docgrid_core.errors import JobNotFound
from docgrid_core.jobs import (
    AttemptId,
    AttemptStatus,
    DocumentId,
    EventType,
    FailureType,
    JobId,
    JobStatus,
    VersionId,
    VersionStatus,
    WorkerId,
)
from docgrid_core.store.queries.answers import COUNT_LIMIT, Page, build, capped, check_page, read_snapshot

MAX_ATTEMPTS = 200
MAX_EVENTS = 500

# Newest first, by what the partial index of the state is sorted by. The index over live jobs begins with the
# version, and versions are made in the order of their jobs; what is PROCESSING is few.
_NEWEST_FIRST = {
    None: "id DESC",
    JobStatus.PENDING: "document_version_id DESC, embedding_model_id DESC",
    JobStatus.PROCESSING: "locked_at DESC, id DESC",
    JobStatus.INDEXED: "completed_at DESC, id DESC",
    JobStatus.FAILED: "failed_at DESC, id DESC",
    JobStatus.CANCELED: "updated_at DESC, id DESC",
}

_FAILURE_TYPE = """
    SELECT a.failure_type FROM embedding_job_attempts a
    WHERE a.embedding_job_id = j.id AND a.status = 'FAILED'
    ORDER BY a.attempt_no DESC
    LIMIT 1
"""

DESCRIBE = text(
    f"""
    SELECT j.id, j.status, j.priority, v.document_id, d.title, d.source_uri, v.id AS version_id, v.version_no,
           v.status AS version_status, m.model_name AS model, j.retry_count, j.max_retry_count, j.suspect,
           j.locked_by_worker_id AS worker_id, w.worker_name, j.created_at, j.started_at, j.locked_at,
           j.lock_expires_at, j.next_retry_at, j.completed_at, j.failed_at, j.updated_at,
           ({_FAILURE_TYPE}) AS failure_type, j.error_code, j.error_message
    FROM embedding_jobs j
    JOIN document_versions v ON v.id = j.document_version_id
    JOIN documents d ON d.id = v.document_id
    JOIN embedding_models m ON m.id = j.embedding_model_id
    LEFT JOIN worker_nodes w ON w.id = j.locked_by_worker_id
    WHERE j.id = ANY (CAST(:ids AS bigint[]))
    """  # noqa: S608 - composed of constants
)

ATTEMPTS = text(
    """
    SELECT a.id, a.attempt_no, a.worker_node_id AS worker_id, w.worker_name, a.status, a.started_at, a.ended_at,
           a.duration_ms, a.failure_type, a.error_code, a.error_message, a.retried, a.next_retry_at
    FROM embedding_job_attempts a
    JOIN worker_nodes w ON w.id = a.worker_node_id
    WHERE a.embedding_job_id = :job_id
    ORDER BY a.attempt_no DESC
    LIMIT :limit
    """
)

EVENTS = text(
    """
    SELECT id, event_type, from_status, to_status, message, metadata, occurred_at
    FROM indexing_events
    WHERE embedding_job_id = :job_id
    ORDER BY id DESC
    LIMIT :limit
    """
)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs to list; None leaves a part out. A failure type means FAILED jobs that failed so last."""

    status: JobStatus | None = None
    document_id: DocumentId | None = None
    worker_id: WorkerId | None = None
    failure_type: FailureType | None = None


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One job, with what a person wants to see of its document, model and worker."""

    id: JobId
    status: JobStatus
    priority: int
    document_id: DocumentId
    title: str = field(repr=False)
    source_uri: str = field(repr=False)
    version_id: VersionId
    version_no: int
    version_status: VersionStatus
    model: str
    retry_count: int
    max_retry_count: int
    suspect: bool
    worker_id: WorkerId | None
    worker_name: str | None
    created_at: datetime
    started_at: datetime | None
    locked_at: datetime | None
    lock_expires_at: datetime | None
    next_retry_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    updated_at: datetime
    failure_type: FailureType | None
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One execution of a job."""

    id: AttemptId
    attempt_no: int
    worker_id: WorkerId
    worker_name: str
    status: AttemptStatus
    started_at: datetime
    ended_at: datetime | None
    duration_ms: int | None
    failure_type: FailureType | None
    error_code: str | None
    error_message: str | None
    retried: bool | None
    next_retry_at: datetime | None


@dataclass(frozen=True, slots=True)
class EventView:
    """One line of a job's history."""

    id: int
    event_type: EventType
    from_status: JobStatus | None
    to_status: JobStatus
    message: str | None
    metadata: Mapping[str, Any]
    occurred_at: datetime


@dataclass(frozen=True, slots=True)
class JobDetail:
    """One job with its executions and events, oldest first: the last 200 and 500 of them."""

    job: JobSummary
    attempts: tuple[AttemptView, ...]
    events: tuple[EventView, ...]


@transactional
def list_jobs(tx: Transaction, wanted: JobFilter, *, page: int = 0, size: int = 50) -> Page[JobSummary]:
    """Return one page of the jobs that match, newest first; raises `BadParameter` for an impossible page."""
    check_page(page, size)
    read_snapshot(tx)
    ids = _matching_ids(tx, wanted, limit=size, offset=page * size)
    counted = len(_matching_ids(tx, wanted, limit=COUNT_LIMIT + 1, offset=0))
    return Page(_describe(tx, ids), page, size, capped(counted))


@transactional
def job_ids(tx: Transaction, wanted: JobFilter, *, limit: int = COUNT_LIMIT) -> list[JobId]:
    """Return the ids of the jobs that match, newest first: what a bulk retry or cancel works through."""
    return _matching_ids(tx, wanted, limit=limit, offset=0)


@transactional
def show_job(tx: Transaction, job_id: JobId) -> JobDetail:
    """Return a job with its attempts and events; raises `JobNotFound`."""
    read_snapshot(tx)
    found = _describe(tx, [job_id])
    if not found:
        raise JobNotFound(f"there is no job {job_id}")
    attempts = tx.execute(ATTEMPTS, job_id=job_id, limit=MAX_ATTEMPTS).mappings().all()
    events = tx.execute(EVENTS, job_id=job_id, limit=MAX_EVENTS).mappings().all()
    return JobDetail(
        job=found[0],
        attempts=tuple(
            build(AttemptView, row, status=AttemptStatus, failure_type=FailureType)
            for row in reversed(attempts)
        ),
        events=tuple(
            build(EventView, row, event_type=EventType, from_status=JobStatus, to_status=JobStatus)
            for row in reversed(events)
        ),
    )


def matching(wanted: JobFilter) -> TextClause:
    """Return the statement that finds the ids of the jobs that match: its plan is a tested property.

    States stand in it as literals, so that their partial indexes can be chosen. The jobs of one document or
    worker are collected before they are sorted; else the planner may walk all jobs to find them in order.
    """
    status = JobStatus.FAILED if wanted.failure_type and not wanted.status else wanted.status
    conditions = [f"j.status = '{status.value}'"] if status else []
    if wanted.failure_type:
        conditions.append(f"coalesce(({_FAILURE_TYPE}), j.error_code) = :failure_type")
    if wanted.worker_id is not None:
        conditions.append("j.locked_by_worker_id = :worker_id")
    if wanted.document_id is not None:
        conditions.append(
            "j.document_version_id IN (SELECT id FROM document_versions WHERE document_id = :document_id)"
        )
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    bounded = wanted.worker_id is not None or wanted.document_id is not None
    order = "id DESC" if bounded else _NEWEST_FIRST[status]
    return text(
        f"""
        WITH found AS {"MATERIALIZED" if bounded else "NOT MATERIALIZED"} (SELECT * FROM embedding_jobs j {where})
        SELECT id FROM found ORDER BY {order} LIMIT :limit OFFSET :offset
        """  # noqa: S608 - composed of constants
    )


def parameters(wanted: JobFilter) -> dict[str, Any]:
    """Return the parameters of `matching` besides limit and offset."""
    values = {
        "document_id": wanted.document_id,
        "worker_id": wanted.worker_id,
        "failure_type": wanted.failure_type,
    }
    return {name: value for name, value in values.items() if value is not None}


def _matching_ids(tx: Transaction, wanted: JobFilter, *, limit: int, offset: int) -> list[JobId]:
    rows = tx.execute(matching(wanted), limit=limit, offset=offset, **parameters(wanted))
    return [JobId(row[0]) for row in rows]


def _describe(tx: Transaction, ids: Sequence[JobId]) -> tuple[JobSummary, ...]:
    states = {"status": JobStatus, "version_status": VersionStatus, "failure_type": FailureType}
    rows = tx.execute(DESCRIBE, ids=list(ids)).mappings()
    found = {row["id"]: build(JobSummary, row, **states) for row in rows}
    return tuple(found[job_id] for job_id in ids if job_id in found)
