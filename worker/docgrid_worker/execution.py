"""Running one claim: attempt, stages, and the report of how it ended."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import (
    AttemptAlreadyEnded,
    AttemptMismatch,
    Busy,
    DatabaseUnavailable,
    DocGridError,
    JobNotFound,
    JobNotProcessing,
    JobOwnershipLost,
    LeaseExpired,
    NewerVersionExists,
    StatementTimeout,
)
from docgrid_core.jobs import VersionStatus
from docgrid_core.records import Ownership
from docgrid_core.store import attempts, control
from docgrid_core.store.attempts import Started
from docgrid_pipeline.stages import Tools, complete, embed, parse
from docgrid_worker.leases import Lease, LeaseLost
from docgrid_worker.metrics import FINISHED, STAGE_SECONDS
from docgrid_worker.reports import Reporter

T = TypeVar("T")

# Refusals that say: the job went to somebody else, or was ended by somebody else. Nothing is left to report.
OWNERSHIP_LOST = (
    JobNotFound,
    JobNotProcessing,
    JobOwnershipLost,
    LeaseExpired,
    AttemptMismatch,
    AttemptAlreadyEnded,
)
LEFT = "left to recovery"
_FIRST_WAIT = 0.2
_LONGEST_WAIT = 5.0

log = structlog.get_logger(__name__)


class RunningExecution:
    """The `Execution` of one lease: its fence, and transactions that outlast an absent database."""

    def __init__(self, lease: Lease, ownership: Ownership) -> None:
        self._lease = lease
        self.ownership = ownership

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is held."""
        self._lease.check()

    def persist(self, transaction: Callable[[], T]) -> T:
        """Run a transaction, again and again while the database is away and the lease is held."""
        return persist(self._lease, transaction)


def persist(lease: Lease, transaction: Callable[[], T]) -> T:
    """Run a transaction of this lease; repeat it while the database is away.

    Every transaction of the protocol answers a repetition, so an answer lost with its connection does no harm.
    Raises `LeaseLost` once the last known expiry has passed, and what else the transaction raises.
    """
    wait = _FIRST_WAIT
    while True:
        lease.check()
        try:
            return transaction()
        except StatementTimeout:
            raise  # it would take as long again
        except (DatabaseUnavailable, Busy):
            lease.wait(wait * random.uniform(0.5, 1))  # noqa: S311 - spreads the slots
            wait = min(2 * wait, _LONGEST_WAIT)


class Executor:
    """Runs leases, one call for each, in the threads of the slots."""

    def __init__(self, db: Database, tools: Tools, reporter: Reporter) -> None:
        self._db = db
        self._tools = tools
        self._reporter = reporter

    def run(self, lease: Lease) -> bool:
        """Run a lease to its end; False: the database could not be told, and recovery takes the job.

        Raises nothing but what makes the process itself unsound.
        """
        claim = lease.claim
        started_at = time.monotonic()
        logger = log.bind(job_id=claim.job_id)
        try:
            started = persist(lease, lambda: attempts.start(self._db, claim))
            logger = logger.bind(attempt=started.number)
            outcome, failure = self._run_attempt(RunningExecution(lease, started.ownership), started)
        except (LeaseLost, *OWNERSHIP_LOST) as error:
            outcome, failure = "lost", type(error).__name__
        except DocGridError as error:
            # The attempt could not be started, or the report was refused: recovery takes the job.
            outcome, failure = LEFT, error.code
        FINISHED.labels(outcome=outcome, failure_type=failure).inc()
        logger.info(
            "execution ended",
            outcome=outcome,
            failure_type=failure or None,
            seconds=round(time.monotonic() - started_at, 3),
        )
        return outcome != LEFT

    def _run_attempt(self, execution: RunningExecution, started: Started) -> tuple[str, str]:
        try:
            self._run_stages(execution, started.version_status)
        except (LeaseLost, *OWNERSHIP_LOST, MemoryError):
            raise
        except NewerVersionExists as error:
            reason = error.message
            execution.persist(lambda: control.cancel_own(self._db, execution.ownership, reason=reason))
            return "canceled", "superseded"
        except Exception as error:  # noqa: BLE001 - whatever a document or a library raises fails this job alone
            execution.check()
            return self._reporter.report(execution, error)
        self._reporter.succeeded()
        return "indexed", ""

    def _run_stages(self, execution: RunningExecution, version_status: VersionStatus) -> None:
        if version_status in {VersionStatus.UPLOADED, VersionStatus.PARSING}:
            with STAGE_SECONDS.labels(stage="parse").time():
                parse.run(self._tools, execution)
            execution.check()
        with STAGE_SECONDS.labels(stage="embed").time():
            embed.run(self._tools, execution)
        execution.check()
        with STAGE_SECONDS.labels(stage="complete").time():
            complete.run(self._tools, execution)
