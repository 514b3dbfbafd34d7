"""What becomes of a job whose worker has ended or whose lease ran out: pure decisions.

`recovery` reads the facts under the job's lock, asks here, and writes.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from docgrid_core.jobs import VERSION_IN_FLIGHT, EventType, FailureType, JobId, StopReason, VersionStatus
from docgrid_core.retry import (
    RELEASES_BEFORE_CRASH,
    RetryPolicy,
    crash_failure,
    is_retried,
    stage_failure_event,
)
from docgrid_core.store.transitions import Failure, Release

LEASE_EXPIRED = "LeaseExpired"
"""Why a job is taken back from a worker that is not known to have ended; else it is the worker's stop reason."""

RECOVERED_MESSAGE = {
    FailureType.WORKER_LEASE_EXPIRED: "the lease of the worker ran out",
    FailureType.WORKER_OOM_KILLED: "the worker was killed for using too much memory",
    FailureType.WORKER_CRASHED: "the worker ended while it ran the job",
}
QUARANTINED_MESSAGE = "the job's rows disagree, it can not be recovered: ingest the document again"


@dataclass(frozen=True, slots=True)
class Facts:
    """What recovery knows of one locked candidate.

    `stop_reason` is None while its worker lives, `pool` (an IndexingWorker's uid) for a worker outside any.
    """

    job_id: JobId
    retry_count: int
    max_retry_count: int
    expired: bool
    stop_reason: StopReason | None
    version_status: VersionStatus
    deleted: bool
    started: int
    foreign_started: int
    crashes: int
    releases_in_a_row: int
    now: datetime
    pool: str | None = None

    @property
    def needs_recovery(self) -> bool:
        """Tell whether its worker has ended or its lease run out."""
        return self.stop_reason is not None or self.expired

    @property
    def reason(self) -> str:
        """Return why it needs recovery: a worker's end counts before an expired lease."""
        return LEASE_EXPIRED if self.stop_reason is None else self.stop_reason.value


@dataclass(frozen=True, slots=True)
class Retry:
    """A failure that costs a retry and runs again."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Terminal:
    """A failure that ends the job."""

    failure: Failure


Decision = Release | Retry | Terminal


def decide(
    facts: Facts, *, policy: RetryPolicy, chance: Callable[[], float] = random.random
) -> Decision | None:
    """Return what becomes of a candidate; None: it needs no recovery (any more). Pure but for `chance`."""
    if not facts.needs_recovery:
        return None
    if facts.version_status not in VERSION_IN_FLIGHT or facts.deleted or facts.foreign_started:
        return Terminal(quarantine(facts))
    if facts.started == 0:
        return Release(facts.job_id, facts.reason, by_recovery=True)
    failure_type = crash_failure(facts.stop_reason)
    if failure_type is None:
        if facts.releases_in_a_row + 1 < RELEASES_BEFORE_CRASH:
            return Release(facts.job_id, facts.reason, by_recovery=True)
        failure_type = FailureType.WORKER_CRASHED
    return _crash(facts, failure_type, policy=policy, chance=chance)


def quarantine(facts: Facts) -> Failure:
    """Return the failure that ends a job whose own rows disagree."""
    return Failure(
        facts.job_id,
        FailureType.INDEXING_STATE_INCONSISTENT,
        FailureType.INDEXING_STATE_INCONSISTENT,
        QUARANTINED_MESSAGE,
        stage_failure_event(facts.version_status),
    )


def _crash(
    facts: Facts, failure_type: FailureType, *, policy: RetryPolicy, chance: Callable[[], float]
) -> Decision:
    retried = is_retried(failure_type, retry_count=facts.retry_count, max_retry_count=facts.max_retry_count)
    # The first crash of a job is most often its worker's fault: it is ready at once.
    delay = policy.delay(facts.retry_count, chance=chance()) if facts.crashes else timedelta(0)
    failure = Failure(
        facts.job_id,
        failure_type,
        failure_type,
        RECOVERED_MESSAGE[failure_type],
        EventType.LEASE_EXPIRED,
        facts.now + delay if retried and delay else None,
    )
    return Retry(failure) if retried else Terminal(failure)
