"""Maintenance as the operator hosts it: a tick of the core's, and what people should hear of it.

It is also how the operator knows whether the database is there, because nothing else asks it as often.
"""

from collections.abc import Callable

from docgrid_core.errors import DocGridError
from docgrid_core.jobs import StopReason
from docgrid_core.maintenance import Maintenance, Retention, TickReport
from docgrid_operator import metrics
from docgrid_operator.conditions import DatabaseState
from docgrid_operator.events import EventRecorder, EventType
from docgrid_operator.kinds import INDEXING_WORKER
from docgrid_operator.observed import Observed
from docgrid_operator.reconciler import PoolFacts

FAILURES_TO_TELL = 2
"""Ticks in a row that fail before pools are told: a restart of the database is over within one."""


class Upkeep:
    """Runs one tick of maintenance and retention, and notes Events on the IndexingWorkers they concern."""

    def __init__(
        self,
        maintenance: Maintenance,
        retention: Retention,
        observed: Observed,
        events: EventRecorder,
        *,
        facts: PoolFacts,
        status_changed: Callable[[], None],
    ) -> None:
        self._maintenance = maintenance
        self._retention = retention
        self._observed = observed
        self._events = events
        self._facts = facts
        self._status_changed = status_changed
        self._failures = 0

    def run_once(self) -> None:
        """Run one tick; raises what the database raises, once the pools' condition says so."""
        try:
            self._tell(self._maintenance.run_once())
            self._retention.run_once()
        except DocGridError as error:
            self._note_failure(error)
            raise
        self._failures = 0
        metrics.DATABASE_REACHABLE.set(1)
        self._set_database(DatabaseState(reachable=True))

    def _note_failure(self, error: DocGridError) -> None:
        self._failures += 1
        metrics.DATABASE_REACHABLE.set(0)
        if self._failures >= FAILURES_TO_TELL:
            self._set_database(DatabaseState(reachable=False, error=error.code))

    def _set_database(self, state: DatabaseState) -> None:
        before = self._facts.database
        if state == before:
            return
        self._facts.database = state
        if state.reachable is False and before.reachable is not False:
            for pool in self._observed.all(INDEXING_WORKER):
                self._events.note(
                    pool,
                    "DatabaseUnreachable",
                    f"the operator can not use the database ({state.error})",
                    type_=EventType.WARNING,
                )
        self._status_changed()

    def _tell(self, report: TickReport) -> None:
        pools = {pool["metadata"]["uid"]: pool for pool in self._observed.all(INDEXING_WORKER)}
        for worker in report.ended:
            metrics.WORKERS_ENDED.labels(reason=StopReason.HEARTBEAT_OVERDUE).inc()
            if worker.pool in pools:
                message = f"the worker in pod {worker.pod_name} ended: {StopReason.HEARTBEAT_OVERDUE}"
                self._events.note(pools[worker.pool], "WorkerDead", message, type_=EventType.WARNING)
        for recovery in report.recovered.pools:
            for outcome in ("released", "retried", "failed"):
                metrics.JOBS_RECOVERED.labels(outcome=outcome).inc(getattr(recovery, outcome))
            if recovery.pool in pools:
                message = (
                    f"{recovery.released} jobs released, {recovery.retried} retried,"
                    f" {recovery.failed} failed ({recovery.reason})"
                )
                self._events.note(pools[recovery.pool], "LeasesRecovered", message)
