"""Recording that an execution failed. The type decides whether it is retried; the caller never does."""

import random
from dataclasses import dataclass
from datetime import timedelta

from docgrid_core.database import Transaction, transactional
from docgrid_core.errors import AttemptAlreadyEnded, BadParameter, FailureInconsistent
from docgrid_core.jobs import VERSION_IN_FLIGHT, AttemptStatus, FailureType
from docgrid_core.records import FailureOutcome, Ownership
from docgrid_core.retry import CRASHES, RetryPolicy, is_retried, stage_failure_event
from docgrid_core.schema import MAX_ERROR_MESSAGE
from docgrid_core.store.ownership import (
    Attempt,
    LockedJob,
    lock_document,
    lock_job,
    lock_version,
    read_attempt,
    require_started,
)
from docgrid_core.store.transitions import Failure, fail_jobs, retry_jobs
from docgrid_core.text import clean


@dataclass(frozen=True, slots=True)
class Report:
    """What went wrong, in our own words: no stack trace, no foreign text.

    `error_code` is the code of the error that caused it, if it has one; `retry_after` is the earliest retry
    that the other side asked for.
    """

    failure_type: FailureType
    message: str
    error_code: str = ""
    retry_after: timedelta = timedelta(0)

    @property
    def code(self) -> str:
        """The code that job and attempt keep."""
        return self.error_code or self.failure_type

    @property
    def stored_message(self) -> str:
        """The message as the database takes it."""
        return clean(self.message)[:MAX_ERROR_MESSAGE]


@transactional
def fail(tx: Transaction, own: Ownership, report: Report, *, policy: RetryPolicy) -> FailureOutcome:
    """Record the failure of a running execution and return what follows from it.

    The same report again returns the stored outcome, whatever the job is now. Raises `BadParameter` for a type
    that only recovery may decide, `AttemptAlreadyEnded` for a different report of an ended attempt, the
    refusals of `LockedJob.require_owner`, `AttemptMismatch`, and `FailureInconsistent` when the version has
    ended already: then only INDEXING_STATE_INCONSISTENT can be reported, which ends the job.
    """
    if report.failure_type in CRASHES:
        raise BadParameter(f"{report.failure_type} is decided by recovery, never reported")
    job = lock_job(tx, own.job_id)
    attempt = read_attempt(tx, own)
    if attempt is not None and attempt.is_of(own.worker_id, own.token) and _has_failed(attempt):
        return _replay(job, attempt, report)
    job.require_owner(own.worker_id, own.token)
    return apply(tx, job, require_started(attempt, own), report, policy=policy)


def apply(
    tx: Transaction, job: LockedJob, attempt: Attempt, report: Report, *, policy: RetryPolicy
) -> FailureOutcome:
    """Make the transition for an execution whose ownership is proven; the job is locked."""
    version = lock_version(tx, job.version_id)
    lock_document(tx, version.document_id)
    if version.status not in VERSION_IN_FLIGHT and (
        report.failure_type is not FailureType.INDEXING_STATE_INCONSISTENT
    ):
        raise FailureInconsistent(f"version {version.id} is {version.status}")
    retried = is_retried(
        report.failure_type, retry_count=job.retry_count, max_retry_count=job.max_retry_count
    )
    delay = max(policy.delay(job.retry_count, chance=random.random()), report.retry_after)  # noqa: S311 - jitter
    failure = Failure(
        job_id=job.id,
        failure_type=report.failure_type,
        error_code=report.code,
        message=report.stored_message,
        cause=stage_failure_event(version.status),
        next_retry_at=job.now + delay if retried else None,
    )
    if retried:
        retry_jobs(tx, [failure], now=job.now)
    else:
        fail_jobs(tx, [failure], now=job.now)
    return FailureOutcome(job.id, attempt.id, AttemptStatus.FAILED, retried, failure.next_retry_at)


def _has_failed(attempt: Attempt) -> bool:
    return attempt.status is AttemptStatus.FAILED


def _replay(job: LockedJob, attempt: Attempt, report: Report) -> FailureOutcome:
    if (attempt.failure_type, attempt.message) != (report.failure_type, report.stored_message):
        raise AttemptAlreadyEnded(f"attempt {attempt.id} of job {job.id} has failed with another report")
    return FailureOutcome(job.id, attempt.id, attempt.status, bool(attempt.retried), attempt.next_retry_at)
