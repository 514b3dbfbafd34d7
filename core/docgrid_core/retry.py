"""Which failures are retried, when, and what a worker's end means for its jobs: pure decisions.

The store applies them with numbers that it reads under the job's lock; nothing here knows SQL or time.
"""

from dataclasses import dataclass
from datetime import timedelta

from docgrid_core.jobs import PLANNED_ENDS, EventType, FailureType, StopReason, VersionStatus, WorkerStatus

RETRIED = frozenset(
    {
        FailureType.STORAGE_UNAVAILABLE,
        FailureType.EMBEDDING_PROVIDER_UNAVAILABLE,
        FailureType.WORKER_INTERNAL_ERROR,
        FailureType.WORKER_LEASE_EXPIRED,
        FailureType.WORKER_OOM_KILLED,
        FailureType.WORKER_CRASHED,
    }
)

CRASHES = frozenset(
    {FailureType.WORKER_LEASE_EXPIRED, FailureType.WORKER_OOM_KILLED, FailureType.WORKER_CRASHED}
)
"""Decided by recovery alone; a caller that reports one of them is refused."""

INFRASTRUCTURE = RETRIED | {
    FailureType.STORAGE_CONFIGURATION_INVALID,
    FailureType.STORAGE_OBJECT_MISSING,
    FailureType.STORAGE_OBJECT_CHANGED,
}
"""Failures that say nothing about the document: registering the same bytes again tries again."""

RELEASES_BEFORE_CRASH = 5
"""The n-th release in a row by recovery of a started attempt counts as a crash."""

_MAX_DOUBLINGS = 20


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long a failed job waits before it is ready again.

    Settings of the installation, not of a pool: `retry_initial_delay`, `retry_max_delay`, `retry_jitter`.
    """

    initial_delay: timedelta = timedelta(seconds=10)
    max_delay: timedelta = timedelta(minutes=5)
    jitter: float = 0.2

    def delay(self, retries: int, *, chance: float) -> timedelta:
        """Return the wait before the retry that follows `retries` earlier ones.

        `chance` in 0..1 places the result inside the jitter band: 0 is the shortest wait, 1 the longest.
        """
        factor = 1 + self.jitter * (2 * chance - 1)
        seconds = self.initial_delay.total_seconds() * (1 << min(retries, _MAX_DOUBLINGS)) * factor
        return timedelta(seconds=min(seconds, self.max_delay.total_seconds()))


def is_retried(failure: FailureType, *, retry_count: int, max_retry_count: int) -> bool:
    """Tell whether a job that failed like this runs again; the caller never chooses."""
    return failure in RETRIED and retry_count < max_retry_count


def stage_failure_event(version: VersionStatus) -> EventType:
    """Return the event that names the stage in which an execution failed."""
    if version in {VersionStatus.CHUNKED, VersionStatus.EMBEDDING}:
        return EventType.EMBEDDING_FAILED
    return EventType.PARSE_FAILED


def crash_failure(stop_reason: StopReason | None) -> FailureType | None:
    """Return what the end of a worker means for an attempt it had started; None = a planned end.

    Without a stop reason the worker is not known to have ended: its lease ran out.
    """
    if stop_reason is None:
        return FailureType.WORKER_LEASE_EXPIRED
    if stop_reason in PLANNED_ENDS:
        return None
    if stop_reason is StopReason.OOM_KILLED:
        return FailureType.WORKER_OOM_KILLED
    return FailureType.WORKER_CRASHED


def effective_status(
    status: WorkerStatus, *, since_heartbeat: timedelta | None, dead_threshold: timedelta
) -> WorkerStatus:
    """Return what a worker counts as, given how long ago the database saw its heartbeat.

    STOPPED and DEAD stay. No heartbeat, or one exactly as old as the threshold, is DEAD.
    """
    if status in {WorkerStatus.STOPPED, WorkerStatus.DEAD}:
        return status
    if since_heartbeat is None or since_heartbeat >= dead_threshold:
        return WorkerStatus.DEAD
    return status
