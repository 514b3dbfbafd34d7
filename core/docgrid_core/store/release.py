"""Giving a job back without spending a retry: at shutdown, for an unknown claim, or to wait for a provider."""

from datetime import timedelta

from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.jobs import AttemptStatus, EventType, JobStatus
from docgrid_core.records import Claim, FailureOutcome, Ownership
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import events, fail
from docgrid_core.store.ownership import enter, lock_job
from docgrid_core.store.transitions import Release, release_jobs

DEFER_ATTEMPT = text(
    """
    UPDATE embedding_job_attempts
    SET status = 'RELEASED', ended_at = :now, updated_at = :now, next_retry_at = :until,
        duration_ms = extract(epoch FROM :now - started_at) * 1000
    WHERE id = :attempt_id
    """
)

DEFER_JOB = text(
    """
    UPDATE embedding_jobs
    SET status = 'PENDING', locked_by_worker_id = NULL, claim_token = NULL, locked_at = NULL,
        lock_expires_at = NULL, next_retry_at = :until, deferred_since = :deferred_since,
        error_code = :error_code, error_message = :message, updated_at = :now
    WHERE id = :job_id
    """
)


@transactional
def release(tx: Transaction, claim: Claim, *, reason: str) -> None:
    """Give the job of a claim back, ready at once; its running attempt, if any, becomes RELEASED.

    Raises what `LockedJob.require_owner` raises.
    """
    job = lock_job(tx, claim.job_id)
    job.require_owner(claim.worker_id, claim.token)
    release_jobs(tx, [Release(job.id, reason)], now=job.now)


@transactional
def defer(
    tx: Transaction,
    own: Ownership,
    report: fail.Report,
    *,
    wait: timedelta,
    max_deferral: timedelta,
    policy: RetryPolicy,
) -> FailureOutcome:
    """Give the job back until `wait` has passed: not the document is at fault, so it costs no retry.

    `report` says why. A job that has been deferred for `max_deferral` since the first time fails with it
    instead. Raises what `enter` raises.
    """
    job, attempt = enter(tx, own)
    since = job.deferred_since or job.now
    if job.now - since >= max_deferral:
        return fail.apply(tx, job, attempt, report, policy=policy)
    until = job.now + wait
    tx.execute(DEFER_ATTEMPT, attempt_id=attempt.id, now=job.now, until=until)
    tx.execute(
        DEFER_JOB,
        job_id=job.id,
        now=job.now,
        until=until,
        deferred_since=since,
        error_code=report.code,
        message=report.stored_message,
    )
    events.record(
        tx,
        job.id,
        EventType.DEFERRED,
        (JobStatus.PROCESSING, JobStatus.PENDING),
        at=job.now,
        message=report.stored_message,
        attempt_no=attempt.number,
        until=until.isoformat(),
    )
    return FailureOutcome(job.id, attempt.id, AttemptStatus.RELEASED, retried=True, next_retry_at=until)
