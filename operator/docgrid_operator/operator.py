"""The operator as a whole: its cache, its queue, its loops, and how they wake each other."""

import threading
import time

import structlog

from docgrid_core.database import Database
from docgrid_core.maintenance import Maintenance, Retention, Watch
from docgrid_operator import metrics
from docgrid_operator.actions import Actions
from docgrid_operator.cluster import Cluster, ClusterError, Conflict, TooManyRequests
from docgrid_operator.counting import Counting
from docgrid_operator.events import EventRecorder
from docgrid_operator.kinds import INDEXING_WORKER, Key, Object, key_of
from docgrid_operator.liveness import Liveness
from docgrid_operator.loops import Loop
from docgrid_operator.observed import Observed
from docgrid_operator.pace import Pace
from docgrid_operator.reconciler import PoolFacts, Reconciler
from docgrid_operator.resources import WorkerDefaults
from docgrid_operator.resync import Resync
from docgrid_operator.settings import Settings
from docgrid_operator.upkeep import Upkeep
from docgrid_operator.views import Views
from docgrid_operator.workqueue import WorkQueue

log = structlog.get_logger(__name__)

STOP_SECONDS = 10.0
GAP_SECONDS = 0.025
"""Between two IndexingWorkers of many that a loop has reconciled: 500 of them take some twelve seconds."""


class Operator:
    """Owns every thread of the operator but kopf's; `start` and `stop` it once each.

    It may be killed at any moment, and two may run at once: the database serializes the protocol, server-side
    apply makes the writes of both the same.
    """

    def __init__(self, settings: Settings, cluster: Cluster, database: Database) -> None:
        own = settings.operator
        self.observed = Observed()
        self.waits_for = ""
        self._queue: WorkQueue[Key] = WorkQueue()
        metrics.QUEUE_LENGTH.set_function(lambda: len(self._queue))
        self._facts = PoolFacts()
        self._events = EventRecorder(cluster)
        self._reconciler = Reconciler(
            cluster,
            self.observed,
            self._events,
            defaults=WorkerDefaults(own.worker_image, settings.worker),
            facts=self._facts,
        )
        self._resync = Resync(
            cluster,
            self.observed,
            namespaces=own.namespaces,
            views_namespace=own.namespace,
            enqueue=self._enqueue_evenly,
        )
        upkeep = Upkeep(
            Maintenance(
                database,
                settings.maintenance,
                settings.worker.retry_policy,
                Watch(longest_gap=max(settings.worker.heartbeat_interval, 2 * settings.maintenance.interval)),
            ),
            Retention(database, settings.maintenance),
            self.observed,
            self._events,
            facts=self._facts,
            status_changed=self._enqueue_all,
        )
        self._liveness = Liveness(
            database,
            cluster,
            self.observed,
            self._events,
            namespaces=own.namespaces,
            recover=self._recover_now,
        )
        pace = Pace(own.views_writes_per_second)
        views = Views(database, cluster, self.observed, self._events, settings=own, pace=pace)
        self._actions = Actions(
            database, cluster, self.observed, self._events, namespace=own.namespace, pace=pace
        )
        counting = Counting(database, self.observed, facts=self._facts, status_changed=self._enqueue_evenly)
        self._upkeep_loop = Loop("maintenance", upkeep.run_once, interval=settings.maintenance.interval)
        self._liveness_loop = Loop("liveness", self._liveness.run_once, interval=own.liveness_interval)
        # Before the first list every view would seem to be missing, and would be written.
        listed = self._resync.done_once
        self._views_loop = Loop("views", views.run_once, interval=own.views_interval, rest=0.1, after=listed)
        self._actions_loop = Loop(
            "actions", self._actions.run_once, interval=own.views_interval, after=listed
        )
        self._events_loop = Loop("events", self._events.write_due, interval=own.status_interval, rest=1.0)
        self._status_loop = Loop(
            "status", counting.run_once, interval=own.status_interval, rest=1.0, after=listed
        )
        self._resync_loop = Loop("resync", self._resync.run_once, interval=own.resync_interval, rest=1.0)
        self._events.wake = self._events_loop.wake
        self._loops = (
            self._resync_loop,
            self._upkeep_loop,
            self._liveness_loop,
            self._status_loop,
            self._views_loop,
            self._actions_loop,
            self._events_loop,
        )
        self._reconcilers = [
            threading.Thread(target=self._work, name=f"reconciler-{number}", daemon=True)
            for number in range(own.reconcilers)
        ]

    def start(self) -> None:
        """Start every thread; the first resync fills the cache before anything is reconciled."""
        for loop in self._loops:
            loop.start()
        for thread in self._reconcilers:
            thread.start()
        log.info("the operator has started")

    def stop(self) -> None:
        """End every thread after what it is at, within `STOP_SECONDS`; what is left undone the next one finds."""
        self._queue.close()
        self._resync.done_once.set()  # reconcilers that wait for it find the queue closed
        for loop in self._loops:
            loop.stop()
        deadline = time.monotonic() + STOP_SECONDS
        for loop in self._loops:
            loop.join(max(0.0, deadline - time.monotonic()))
        for thread in self._reconcilers:
            if thread.ident is not None:  # it may be stopped before it was started
                thread.join(max(0.0, deadline - time.monotonic()))
        log.info("the operator has stopped")

    def enqueue(self, key: Key, *, after: float = 0.0) -> None:
        """Have an IndexingWorker reconciled in `after` seconds."""
        self._queue.add(key, after=after)

    def pod_told(self, pod: Object) -> None:
        """Take note of a change of a worker's pod."""
        if self._liveness.told(pod):
            self._liveness_loop.wake()

    def view_told(self, view: Object) -> None:
        """Take note of a change of an IndexingJob."""
        if self._actions.concerns(view):
            self._actions_loop.wake()

    @property
    def problem(self) -> str:
        """What only a restart can heal, for the liveness probe; never that the apiserver or database is away."""
        for loop in self._loops:
            if loop.problem:
                return loop.problem
        if self._resync.done_once.is_set() and not all(thread.is_alive() for thread in self._reconcilers):
            return "a reconciler has ended"
        silent = sorted(plural for plural, _namespace in self.observed.silent)
        return f"the watch of {', '.join(silent)} is silent" if silent else ""

    @property
    def not_ready(self) -> str:
        """What the operator waits for, for the readiness probe."""
        if self.waits_for:
            return f"waits for {self.waits_for}"
        return "" if self._resync.done_once.is_set() else "waits for the first list"

    def _recover_now(self) -> None:
        self._upkeep_loop.wake()

    def _enqueue_all(self) -> None:
        self._enqueue_evenly([key_of(pool) for pool in self.observed.all(INDEXING_WORKER)])

    def _enqueue_evenly(self, keys: list[Key]) -> None:
        """Have many IndexingWorkers reconciled one after the other: what a person changes need not wait for them."""
        for number, key in enumerate(keys):
            self.enqueue(key, after=number * GAP_SECONDS)

    def _work(self) -> None:
        self._resync.done_once.wait()
        while (key := self._queue.take()) is not None:
            with metrics.RECONCILE_SECONDS.time():
                outcome = self._reconcile(key)
            metrics.RECONCILES.labels(outcome=outcome).inc()

    def _reconcile(self, key: Key) -> str:
        try:
            problem = self._reconciler.reconcile(key)
        except TooManyRequests as refusal:
            self._queue.retry(key, after=refusal.retry_after)
            return "throttled"
        except Conflict:
            self._queue.retry(key)
            return "conflict"
        except ClusterError as error:
            log.warning(
                "an IndexingWorker could not be reconciled", pool=str(key), problem=type(error).__name__
            )
            self._queue.retry(key)
            return "unavailable"
        except Exception as error:  # noqa: BLE001 - one bad object must not end the thread; the text may be anything
            log.error("unexpected error", pool=str(key), error_type=type(error).__name__)
            self._queue.retry(key)
            return "error"
        if problem is not None:
            self._queue.retry(key)
            return "blocked"
        self._queue.done(key)
        if (seconds := self._reconciler.next_look(key)) is not None:
            self.enqueue(key, after=seconds + 1.0)
        return "done"
