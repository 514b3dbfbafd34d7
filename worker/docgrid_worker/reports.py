"""Reporting an execution that did not succeed: failed, or deferred because no document is at fault."""

import threading
from collections.abc import Callable
from datetime import timedelta

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import FailureInconsistent, FaultError, ProviderMisconfigured, StorageMisconfigured
from docgrid_core.jobs import AttemptStatus, FailureType, JobId
from docgrid_core.records import FailureOutcome
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import fail, release
from docgrid_pipeline.failures import report_for
from docgrid_pipeline.stages import Execution

# A wrong Secret, bucket or model name hits every document alike: their jobs wait for whoever corrects it.
MISCONFIGURED = (StorageMisconfigured, ProviderMisconfigured)
DEFERRAL = timedelta(seconds=30)

log = structlog.get_logger(__name__)


class Reporter:
    """Turns the error that ended an execution into its report, and ends the process after a streak of its own."""

    def __init__(
        self,
        db: Database,
        policy: RetryPolicy,
        *,
        max_deferral: timedelta,
        on_internal_errors: Callable[[], None],
    ) -> None:
        self._db = db
        self._policy = policy
        self._max_deferral = max_deferral
        self._internal_errors = Streak(on_internal_errors)

    def report(self, execution: Execution, error: Exception) -> tuple[str, str]:
        """Write the report of `error` and return the outcome and the failure type; raises as `persist` does."""
        report = report_for(error)
        self._log(execution.ownership.job_id, error, report)
        try:
            outcome = self._write(execution, error, report)
        except FailureInconsistent as inconsistent:
            # The version's own rows forbid the report: the job is put in quarantine instead.
            report = report_for(inconsistent)
            outcome = self._write(execution, inconsistent, report)
        if report.failure_type is FailureType.WORKER_INTERNAL_ERROR:
            self._internal_errors.another(execution.ownership.job_id)
        else:
            self._internal_errors.end()
        if outcome.attempt_status is AttemptStatus.RELEASED:
            return "deferred", report.failure_type
        return ("retried" if outcome.retried else "failed"), report.failure_type

    def succeeded(self) -> None:
        """Note an execution that succeeded: the process is sound."""
        self._internal_errors.end()

    def _write(self, execution: Execution, error: Exception, report: fail.Report) -> FailureOutcome:
        if isinstance(error, MISCONFIGURED):
            return execution.persist(
                lambda: release.defer(
                    self._db,
                    execution.ownership,
                    report,
                    wait=DEFERRAL,
                    max_deferral=self._max_deferral,
                    policy=self._policy,
                )
            )
        return execution.persist(
            lambda: fail.fail(self._db, execution.ownership, report, policy=self._policy)
        )

    def _log(self, job_id: JobId, error: Exception, report: fail.Report) -> None:
        if report.failure_type is FailureType.WORKER_INTERNAL_ERROR:
            log.error(
                "unexpected error in a job",
                job_id=job_id,
                error_type=type(error).__name__,
                where=_where(error),
            )
        elif isinstance(error, FaultError):
            # The job keeps the fixed text of the code; what an operator needs beyond it is said here alone.
            log.warning(
                "a stage failed",
                job_id=job_id,
                failure_type=report.failure_type,
                error_code=error.code,
                detail=error.detail,
            )


class Streak:
    """Counts internal errors of different jobs in a row: a bad node or a full disk must not burn the queue."""

    LIMIT = 3

    def __init__(self, on_limit: Callable[[], None]) -> None:
        self._on_limit = on_limit
        self._jobs: set[JobId] = set()
        self._lock = threading.Lock()

    def another(self, job_id: JobId) -> None:
        """Count one more; the third job in a row calls `on_limit`."""
        with self._lock:
            self._jobs.add(job_id)
            reached = len(self._jobs) >= self.LIMIT
        if reached:
            self._on_limit()

    def end(self) -> None:
        """Forget the streak."""
        with self._lock:
            self._jobs.clear()


def _where(error: BaseException) -> str:
    """Return function and line of the innermost frame: enough to find the place, without any text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
