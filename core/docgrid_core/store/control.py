"""Cancel and retry: what a person, or a newer version of the document, decides about a job.

A caller that may ask twice for the same thing (the operator, which answers an annotation and may die before it has
removed it) names its `request`: the name goes into the job's event, and a request that is there changes nothing.
"""

from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.errors import CancelNotAllowed, RetryNotAllowed
from docgrid_core.jobs import JOB_LIVE, DocumentStatus, EventType, JobId, JobStatus, VersionStatus
from docgrid_core.records import Ownership
from docgrid_core.store import events
from docgrid_core.store.models import lock_if_active
from docgrid_core.store.ownership import (
    LockedJob,
    LockedVersion,
    enter,
    lock_document,
    lock_job,
    lock_version,
)
from docgrid_core.text import clean

CANCEL = text(
    """
    WITH attempt AS (
      UPDATE embedding_job_attempts
      SET status = 'RELEASED', ended_at = :now, updated_at = :now,
          duration_ms = extract(epoch FROM :now - started_at) * 1000
      WHERE embedding_job_id = :job_id AND status = 'STARTED'
    ), job AS (
      UPDATE embedding_jobs
      SET status = 'CANCELED', locked_by_worker_id = NULL, claim_token = NULL, locked_at = NULL,
          lock_expires_at = NULL, next_retry_at = NULL, updated_at = :now
      WHERE id = :job_id
    ), version AS (
      UPDATE document_versions SET status = 'CANCELED', updated_at = :now WHERE id = :version_id
    ), document AS (
      UPDATE documents SET status = 'UPLOADED', updated_at = :now
      WHERE id = :document_id AND status IN ('INDEXING', 'FAILED')
    )
    UPDATE embeddings SET status = 'STALE' WHERE document_version_id = :version_id AND status = 'ACTIVE'
    """
)

READ_NEWEST = text("SELECT max(version_no) FROM document_versions WHERE document_id = :document_id")

# The resume point of a failed version: its chunks, if they are stored.
REOPEN_VERSION = text(
    """
    UPDATE document_versions v
    SET status = CASE WHEN EXISTS (SELECT FROM document_chunks c WHERE c.document_version_id = v.id)
                      THEN 'CHUNKED' ELSE 'UPLOADED' END,
        updated_at = :now
    WHERE id = :version_id
    """
)

REOPEN_JOB = text(
    """
    UPDATE embedding_jobs
    SET status = 'PENDING', retry_count = max_retry_count, suspect = false, deferred_since = NULL,
        error_code = NULL, error_message = NULL, failed_at = NULL, next_retry_at = NULL,
        locked_by_worker_id = NULL, claim_token = NULL, locked_at = NULL, lock_expires_at = NULL,
        updated_at = :now
    WHERE id = :job_id
    """
)

REOPEN_DOCUMENT = text(
    """
    UPDATE documents SET status = 'INDEXING', updated_at = :now
    WHERE id = :document_id AND status = 'FAILED'
    """
)


IS_ANSWERED = text(
    """
    SELECT EXISTS (
      SELECT FROM indexing_events
      WHERE embedding_job_id = :job_id AND event_type = :event_type AND metadata->>'request' = :request)
    """
)


@transactional
def cancel(tx: Transaction, job_id: JobId, *, reason: str, by: str, request: str | None = None) -> None:
    """Cancel a job that has not ended; a running worker loses it and writes nothing more.

    A repetition of `request` does nothing, whatever the job is now. Raises `JobNotFound`, and `CancelNotAllowed`
    for a job that is neither PENDING nor PROCESSING.
    """
    job = lock_job(tx, job_id)
    if _is_answered(tx, job, EventType.CANCELED, request):
        return
    if job.status not in JOB_LIVE:
        raise CancelNotAllowed(
            f"job {job.id} is {job.status}: only a PENDING or PROCESSING job can be canceled"
        )
    cancel_locked(tx, job, lock_version(tx, job.version_id), reason=reason, by=by, request=request)


@transactional
def cancel_own(tx: Transaction, own: Ownership, *, reason: str) -> None:
    """Cancel the job of a running execution: a newer version of its document was registered.

    Raises what `enter` raises.
    """
    job, _attempt = enter(tx, own)
    cancel_locked(tx, job, lock_version(tx, job.version_id), reason=reason, by="worker")


def cancel_locked(
    tx: Transaction,
    job: LockedJob,
    version: LockedVersion,
    *,
    reason: str,
    by: str,
    request: str | None = None,
) -> None:
    """Cancel a live job; job and version are locked, the document is locked here."""
    lock_document(tx, version.document_id)
    tx.execute(CANCEL, now=job.now, job_id=job.id, version_id=version.id, document_id=version.document_id)
    events.record(
        tx,
        job.id,
        EventType.CANCELED,
        (job.status, JobStatus.CANCELED),
        at=job.now,
        message=clean(reason),
        **_asked(by, request),
    )


@transactional
def retry(tx: Transaction, job_id: JobId, *, reason: str, by: str, request: str | None = None) -> None:
    """Give a FAILED job one more execution.

    A repetition of `request` does nothing, whatever the job is now. Raises `JobNotFound`, and `RetryNotAllowed`
    unless its FAILED version is still its document's newest, the document is not deleted and the model is active.
    """
    job = lock_job(tx, job_id)
    if not _is_answered(tx, job, EventType.MANUAL_RETRY, request):
        retry_locked(tx, job, lock_version(tx, job.version_id), reason=reason, by=by, request=request)


def retry_locked(
    tx: Transaction,
    job: LockedJob,
    version: LockedVersion,
    *,
    reason: str,
    by: str,
    request: str | None = None,
) -> None:
    """Reopen a FAILED job; job and version are locked, the document is locked here."""
    document = lock_document(tx, version.document_id)
    if job.status is not JobStatus.FAILED:
        raise RetryNotAllowed(f"job {job.id} is {job.status}: only a FAILED job can be retried")
    if version.status is not VersionStatus.FAILED:
        raise RetryNotAllowed(f"version {version.version_no} of job {job.id} is {version.status}, not FAILED")
    if document.status is DocumentStatus.DELETED:
        raise RetryNotAllowed(f"the document of job {job.id} is deleted")
    if tx.execute(READ_NEWEST, document_id=document.id).scalar_one() != version.version_no:
        raise RetryNotAllowed(f"a newer version of the document of job {job.id} was registered")
    if not lock_if_active(tx, job.model_id):
        raise RetryNotAllowed(f"the embedding model of job {job.id} is no longer active")
    tx.execute(REOPEN_VERSION, version_id=version.id, now=job.now)
    tx.execute(REOPEN_JOB, job_id=job.id, now=job.now)
    tx.execute(REOPEN_DOCUMENT, document_id=document.id, now=job.now)
    events.record(
        tx,
        job.id,
        EventType.MANUAL_RETRY,
        (JobStatus.FAILED, JobStatus.PENDING),
        at=job.now,
        message=clean(reason),
        **_asked(by, request),
    )
    tx.announce_ready(job.model_id)


def _is_answered(tx: Transaction, job: LockedJob, event: EventType, request: str | None) -> bool:
    """Tell whether the request was carried out before: read after the job's lock, which the event was written under."""
    if request is None:
        return False
    answered: bool = tx.execute(
        IS_ANSWERED, job_id=job.id, event_type=event, request=clean(request)
    ).scalar_one()
    return answered


def _asked(by: str, request: str | None) -> dict[str, str]:
    return {"by": clean(by)} | ({} if request is None else {"request": clean(request)})
