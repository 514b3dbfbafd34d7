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
    FailureInconsistent,
    FaultError,
    JobNotFound,
    JobNotProcessing,
    JobOwnershipLost,
    LeaseExpired,
    NewerVersionExists,
)
from docgrid_core.jobs import FailureType, JobId, VersionStatus
from docgrid_core.records import FailureOutcome, Ownership
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import attempts, control, fail
from docgrid_core.store.attempts import Started
from docgrid_pipeline.failures import report_for
from docgrid_pipeline.stages import Tools, complete, embed, parse
from docgrid_worker.leases import Lease, LeaseLost
from docgrid_worker.metrics import FINISHED, STAGE_SECONDS

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
    Raises `LeaseLost` once the last known expiry has passed.
    """
    wait = _FIRST_WAIT
    while True:
        lease.check()
        try:
            return transaction()
        except (DatabaseUnavailable, Busy):
            lease.wait(wait * random.uniform(0.5, 1))  # noqa: S311 - spreads the slots
            wait = min(2 * wait, _LONGEST_WAIT)


class Executor:
    """Runs leases, one call for each, in the threads of the slots."""

    def __init__(
        self, db: Database, tools: Tools, policy: RetryPolicy, on_internal_errors: Callable[[], None]
    ) -> None:
        self._db = db
        self._tools = tools
        self._policy = policy
        self._internal_errors = _Streak(on_internal_errors)

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
        except (LeaseLost, *OWNERSHIP_LOST, DatabaseUnavailable, Busy, MemoryError):
            raise
        except NewerVersionExists as error:
            reason = error.message
            execution.persist(lambda: control.cancel_own(self._db, execution.ownership, reason=reason))
            return "canceled", "superseded"
        except Exception as error:  # noqa: BLE001 - whatever a document or a library raises fails this job alone
            execution.check()
            return self._report(execution, error)
        self._internal_errors.end()
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

    def _report(self, execution: RunningExecution, error: Exception) -> tuple[str, str]:
        report = report_for(error)
        if report.failure_type is FailureType.WORKER_INTERNAL_ERROR:
            log.error(
                "unexpected error in a job",
                job_id=execution.ownership.job_id,
                error_type=type(error).__name__,
                where=_where(error),
            )
        elif isinstance(error, FaultError):
            # The job keeps the fixed text of the code; what an operator needs beyond it is said here alone.
            log.warning(
                "a stage failed",
                job_id=execution.ownership.job_id,
                failure_type=report.failure_type,
                error_code=error.code,
                detail=error.detail,
            )
        try:
            outcome = self._fail(execution, report)
        except FailureInconsistent as inconsistent:
            # The version's own rows forbid the report: the job is put in quarantine instead.
            outcome = self._fail(execution, report_for(inconsistent))
        if report.failure_type is FailureType.WORKER_INTERNAL_ERROR:
            self._internal_errors.another(execution.ownership.job_id)
        else:
            self._internal_errors.end()
        return ("retried" if outcome.retried else "failed"), report.failure_type

    def _fail(self, execution: RunningExecution, report: fail.Report) -> FailureOutcome:
        return execution.persist(
            lambda: fail.fail(self._db, execution.ownership, report, policy=self._policy)
        )


class _Streak:
    """Counts internal errors of different jobs in a row: a bad node or a full disk must not burn the queue."""

    LIMIT = 3

    def __init__(self, on_limit: Callable[[], None]) -> None:
        self._on_limit = on_limit
        self._jobs: set[JobId] = set()

    def another(self, job_id: JobId) -> None:
        self._jobs.add(job_id)
        if len(self._jobs) >= self.LIMIT:
            self._on_limit()

    def end(self) -> None:
        self._jobs.clear()


def _where(error: BaseException) -> str:
    """Return file name and line of the innermost frame: enough to find the place, without any text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
