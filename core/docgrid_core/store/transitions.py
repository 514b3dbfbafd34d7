"""How a PROCESSING job leaves that state without being indexed: released, retried or failed.

One statement for each move, over any number of jobs, used by the worker's reports (one job) and by recovery
(a batch), so that both leave the same rows behind. The caller holds the locks of jobs, versions and documents
and has decided; what is written here is conditional on the state all the same.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

from docgrid_core.database import Transaction
from docgrid_core.jobs import EventType, FailureType, JobId, ModelId

RELEASE_JOBS = text(
    """
    WITH decision AS MATERIALIZED (
      SELECT * FROM jsonb_to_recordset(:decisions) AS d (job_id bigint, reason text, by_recovery boolean)
    ), attempt AS (
      UPDATE embedding_job_attempts a
      SET status = 'RELEASED', ended_at = :now, updated_at = :now,
          duration_ms = extract(epoch FROM :now - a.started_at) * 1000,
          error_code = CASE WHEN d.by_recovery THEN d.reason END
      FROM decision d
      WHERE a.embedding_job_id = d.job_id AND a.status = 'STARTED'
      RETURNING a.embedding_job_id, a.attempt_no
    ), job AS (
      UPDATE embedding_jobs j
      SET status = 'PENDING', locked_by_worker_id = NULL, claim_token = NULL, locked_at = NULL,
          lock_expires_at = NULL, updated_at = :now
      FROM decision d
      WHERE j.id = d.job_id AND j.status = 'PROCESSING'
      RETURNING j.id, j.embedding_model_id, d.reason
    ), event AS (
      INSERT INTO indexing_events
        (embedding_job_id, event_type, from_status, to_status, message, metadata, occurred_at)
      SELECT job.id, 'RELEASED', 'PROCESSING', 'PENDING', job.reason,
             jsonb_strip_nulls(jsonb_build_object('attempt_no', attempt.attempt_no)), :now
      FROM job LEFT JOIN attempt ON attempt.embedding_job_id = job.id
      ORDER BY job.id
    )
    SELECT DISTINCT embedding_model_id FROM job
    """
).bindparams(bindparam("decisions", type_=JSONB))

_END_ATTEMPTS = """
    WITH failure AS MATERIALIZED (
      SELECT * FROM jsonb_to_recordset(:failures) AS f
        (job_id bigint, failure_type text, error_code text, message text, cause text, next_retry_at timestamptz)
    ), attempt AS (
      UPDATE embedding_job_attempts a
      SET status = 'FAILED', ended_at = :now, updated_at = :now,
          duration_ms = extract(epoch FROM :now - a.started_at) * 1000,
          failure_type = f.failure_type, error_code = f.error_code, error_message = f.message,
          retried = :retried, next_retry_at = f.next_retry_at
      FROM failure f
      WHERE a.embedding_job_id = f.job_id AND a.status = 'STARTED'
      RETURNING a.embedding_job_id, a.attempt_no
    )
"""

_RECORD_FAILURE = """
      INSERT INTO indexing_events
        (embedding_job_id, event_type, from_status, to_status, message, metadata, occurred_at)
      SELECT job.id, line.event_type, 'PROCESSING', line.to_status, f.message,
             jsonb_strip_nulls(jsonb_build_object(
               'attempt_no', attempt.attempt_no, 'failure_type', f.failure_type, 'error_code', f.error_code,
               'next_retry_at', f.next_retry_at)),
             :now
      FROM job
      JOIN failure f ON f.job_id = job.id
      LEFT JOIN (SELECT embedding_job_id, max(attempt_no) AS attempt_no FROM attempt GROUP BY 1) AS attempt
        ON attempt.embedding_job_id = job.id
"""

RETRY_JOBS = text(
    f"""{_END_ATTEMPTS}, job AS (
      UPDATE embedding_jobs j
      SET status = 'PENDING', retry_count = j.retry_count + 1, next_retry_at = f.next_retry_at,
          locked_by_worker_id = NULL, claim_token = NULL, locked_at = NULL, lock_expires_at = NULL,
          error_code = f.error_code, error_message = f.message, updated_at = :now
      FROM failure f
      WHERE j.id = f.job_id AND j.status = 'PROCESSING'
      RETURNING j.id, j.embedding_model_id, j.next_retry_at
    ), event AS ({_RECORD_FAILURE}
      CROSS JOIN LATERAL (VALUES (1, f.cause, 'PROCESSING'), (2, 'RETRY', 'PENDING'))
        AS line (position, event_type, to_status)
      ORDER BY job.id, line.position
    )
    SELECT DISTINCT embedding_model_id FROM job WHERE next_retry_at IS NULL
    """  # noqa: S608 - composed of constants
).bindparams(bindparam("failures", type_=JSONB))

# A version that is final already keeps its state and its vectors: only quarantine meets one.
FAIL_JOBS = text(
    f"""{_END_ATTEMPTS}, job AS (
      UPDATE embedding_jobs j
      SET status = 'FAILED', failed_at = :now, error_code = f.error_code, error_message = f.message,
          updated_at = :now
      FROM failure f
      WHERE j.id = f.job_id AND j.status = 'PROCESSING'
      RETURNING j.id, j.document_version_id
    ), version AS (
      UPDATE document_versions v
      SET status = 'FAILED', updated_at = :now
      FROM job
      WHERE v.id = job.document_version_id AND v.status IN ('UPLOADED', 'PARSING', 'CHUNKED', 'EMBEDDING')
      RETURNING v.id, v.document_id
    ), embedding AS (
      UPDATE embeddings e
      SET status = 'STALE'
      FROM version
      WHERE e.document_version_id = version.id AND e.status = 'ACTIVE'
    ), document AS (
      UPDATE documents d
      SET status = 'FAILED', updated_at = :now
      FROM version
      WHERE d.id = version.document_id AND d.status IN ('UPLOADED', 'INDEXING')
    ), event AS ({_RECORD_FAILURE}
      CROSS JOIN LATERAL (VALUES (1, f.cause, 'PROCESSING'), (2, 'FAILED', 'FAILED'))
        AS line (position, event_type, to_status)
      ORDER BY job.id, line.position
    )
    SELECT count(*) FROM job
    """  # noqa: S608 - composed of constants
).bindparams(bindparam("failures", type_=JSONB))


@dataclass(frozen=True, slots=True)
class Failure:
    """One execution's failure, decided: `next_retry_at` None means ready at once when it is retried."""

    job_id: JobId
    failure_type: FailureType
    error_code: str
    message: str
    cause: EventType
    next_retry_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """One execution given back without costing a retry."""

    job_id: JobId
    reason: str
    by_recovery: bool = False


def release_jobs(tx: Transaction, releases: Sequence[Release], *, now: datetime) -> None:
    """Give jobs back: running attempts RELEASED, jobs PENDING and ready at once."""
    if not releases:
        return
    rows = tx.execute(RELEASE_JOBS, decisions=[asdict(release) for release in releases], now=now)
    _wake(tx, [row[0] for row in rows], urgent=any(release.by_recovery for release in releases))


def retry_jobs(tx: Transaction, failures: Sequence[Failure], *, now: datetime, urgent: bool = False) -> None:
    """Record failures that are retried: one retry spent, jobs PENDING, versions keep their resume point."""
    if not failures:
        return
    rows = tx.execute(RETRY_JOBS, failures=_as_json(failures), now=now, retried=True)
    _wake(tx, [row[0] for row in rows], urgent=urgent)


def fail_jobs(tx: Transaction, failures: Sequence[Failure], *, now: datetime) -> None:
    """Record final failures: job and version FAILED, the document only if nothing else of it is searchable."""
    if failures:
        tx.execute(FAIL_JOBS, failures=_as_json(failures), now=now, retried=False)


def _as_json(failures: Sequence[Failure]) -> list[dict[str, object]]:
    return [
        asdict(failure)
        | {"next_retry_at": failure.next_retry_at.isoformat() if failure.next_retry_at else None}
        for failure in failures
    ]


def _wake(tx: Transaction, models: Sequence[int], *, urgent: bool) -> None:
    for model in models:
        tx.announce_ready(ModelId(model), urgent=urgent)
