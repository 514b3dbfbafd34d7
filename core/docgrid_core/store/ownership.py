"""Locks and the fence: what every transaction on a job begins with.

The order of locks is Job → Version → Document. Each lock is a statement of its own, and what a decision reads
besides the locked row is read after it: a locking statement's snapshot is older than its lock.
"""

from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from sqlalchemy import text

from docgrid_core.database import Transaction
from docgrid_core.errors import (
    AttemptMismatch,
    DocumentNotFound,
    InternalError,
    JobNotFound,
    JobNotProcessing,
    JobOwnershipLost,
    LeaseExpired,
    OwnershipIncomplete,
)
from docgrid_core.jobs import (
    AttemptId,
    AttemptStatus,
    DocumentId,
    DocumentStatus,
    JobId,
    JobStatus,
    ModelId,
    VersionId,
    VersionStatus,
    WorkerId,
)
from docgrid_core.records import ClaimToken, Ownership

# The clock is a CTE of its own that depends on the lock: in the locking SELECT's own target list it would be
# read before the wait for the lock.
LOCK_JOB = text(
    """
    WITH job AS MATERIALIZED (
      SELECT * FROM embedding_jobs WHERE id = :job_id FOR NO KEY UPDATE
    ), clock AS MATERIALIZED (
      SELECT clock_timestamp() AS now, count(*) FROM job
    )
    SELECT job.id, job.document_version_id AS version_id, job.embedding_model_id AS model_id, job.status,
           job.retry_count, job.max_retry_count, job.deferred_since, job.locked_by_worker_id AS worker_id,
           job.claim_token AS token, job.locked_at, job.lock_expires_at, job.completed_at, clock.now
    FROM job, clock
    """
)

LOCK_VERSION = text(
    """
    SELECT id, document_id, version_no, status
    FROM document_versions WHERE id = :version_id FOR NO KEY UPDATE
    """
)

LOCK_DOCUMENT = text(
    """
    SELECT id, status, current_version_id, document_type FROM documents WHERE id = :document_id FOR NO KEY UPDATE
    """
)

READ_ATTEMPT = text(
    """
    SELECT id, attempt_no AS number, worker_node_id AS worker_id, claim_token AS token, status, failure_type,
           error_message AS message, retried, next_retry_at
    FROM embedding_job_attempts WHERE id = :attempt_id AND embedding_job_id = :job_id
    """
)


@dataclass(frozen=True, slots=True)
class LockedJob:
    """A job row under this transaction's lock, and the time at which the lock was held."""

    id: JobId
    version_id: VersionId
    model_id: ModelId
    status: JobStatus
    retry_count: int
    max_retry_count: int
    deferred_since: datetime | None
    worker_id: WorkerId | None
    token: UUID | None = field(repr=False)
    locked_at: datetime | None
    lock_expires_at: datetime | None
    completed_at: datetime | None
    now: datetime

    def require_owner(self, worker_id: WorkerId, token: ClaimToken) -> None:
        """Refuse everyone but the claim that owns the job now; the order of the checks is the protocol's."""
        if self.status is not JobStatus.PROCESSING:
            raise JobNotProcessing(f"job {self.id} is {self.status}")
        if None in (self.worker_id, self.token, self.locked_at) or self.lock_expires_at is None:
            raise OwnershipIncomplete(f"job {self.id}")
        if self.worker_id != worker_id or self.token != token.value:
            raise JobOwnershipLost(f"job {self.id} is owned by another claim")
        if self.lock_expires_at <= self.now:
            raise LeaseExpired(f"the lease of job {self.id} has expired")


@dataclass(frozen=True, slots=True)
class LockedVersion:
    """A version row under this transaction's lock."""

    id: VersionId
    document_id: DocumentId
    version_no: int
    status: VersionStatus


@dataclass(frozen=True, slots=True)
class LockedDocument:
    """A document row under this transaction's lock."""

    id: DocumentId
    status: DocumentStatus
    current_version_id: VersionId | None
    document_type: str


@dataclass(frozen=True, slots=True)
class Attempt:
    """One execution of a job, as stored."""

    id: AttemptId
    number: int
    worker_id: WorkerId
    token: UUID = field(repr=False)
    status: AttemptStatus
    failure_type: str | None
    message: str | None
    retried: bool | None
    next_retry_at: datetime | None

    def is_of(self, worker_id: WorkerId, token: ClaimToken) -> bool:
        """Tell whether this is the attempt of that claim."""
        return self.worker_id == worker_id and self.token == token.value


def lock_job(tx: Transaction, job_id: JobId) -> LockedJob:
    """Lock the job and read the clock; raises `JobNotFound`."""
    row = tx.execute(LOCK_JOB, job_id=job_id).one_or_none()
    if row is None:
        raise JobNotFound(f"there is no job {job_id}")
    return LockedJob(**row._asdict() | {"status": JobStatus(row.status)})


def lock_version(tx: Transaction, version_id: VersionId) -> LockedVersion:
    """Lock a version; its job's lock is held already."""
    row = tx.execute(LOCK_VERSION, version_id=version_id).one_or_none()
    if row is None:
        raise InternalError(f"version {version_id} is missing")
    return LockedVersion(**row._asdict() | {"status": VersionStatus(row.status)})


def lock_document(tx: Transaction, document_id: DocumentId) -> LockedDocument:
    """Lock a document; job and version, if any, are locked already. Raises `DocumentNotFound`."""
    row = tx.execute(LOCK_DOCUMENT, document_id=document_id).one_or_none()
    if row is None:
        raise DocumentNotFound(f"there is no document {document_id}")
    return LockedDocument(**row._asdict() | {"status": DocumentStatus(row.status)})


def read_attempt(tx: Transaction, own: Ownership) -> Attempt | None:
    """Return the attempt that `own` names if it is one of its job."""
    row = tx.execute(READ_ATTEMPT, attempt_id=own.attempt_id, job_id=own.job_id).one_or_none()
    return None if row is None else Attempt(**row._asdict() | {"status": AttemptStatus(row.status)})


def enter(tx: Transaction, own: Ownership) -> tuple[LockedJob, Attempt]:
    """Lock the job and let only its owner's running execution pass.

    Raises the refusals of `LockedJob.require_owner`, and `AttemptMismatch` unless the attempt is this claim's
    and STARTED.
    """
    job = lock_job(tx, own.job_id)
    job.require_owner(own.worker_id, own.token)
    return job, require_started(read_attempt(tx, own), own)


def require_started(attempt: Attempt | None, own: Ownership) -> Attempt:
    """Return `attempt` if it is this claim's and STARTED, else raise `AttemptMismatch`."""
    if (
        attempt is None
        or attempt.status is not AttemptStatus.STARTED
        or not attempt.is_of(own.worker_id, own.token)
    ):
        raise AttemptMismatch(f"attempt {own.attempt_id} is not the running attempt of this claim")
    return attempt
