"""What runs in a registered worker: its threads, from the first heartbeat to the last write.

`worker` builds a `Runtime` once the process has its row, and tells it to start and to finish.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from docgrid_core.database import Database
from docgrid_core.maintenance import Maintenance, MaintenanceLoop, Retention, Watch
from docgrid_core.store import release, workers
from docgrid_core.store.workers import RegisteredWorker
from docgrid_pipeline.embeddings import build_provider
from docgrid_pipeline.objects import ObjectStore
from docgrid_pipeline.stages import Tools
from docgrid_worker.errorlog import ErrorLog
from docgrid_worker.execution import Executor
from docgrid_worker.heartbeat import HeartbeatThread
from docgrid_worker.lastwrites import LIMIT, try_to
from docgrid_worker.leases import Lease, LeaseBook, LeaseThread
from docgrid_worker.lifecycle import ExitCode, Lifecycle
from docgrid_worker.metrics import TimedProvider
from docgrid_worker.poller import Poller, listen
from docgrid_worker.reports import Reporter
from docgrid_worker.settings import Settings
from docgrid_worker.slots import Slots

_SAFETY_NET_JITTER = 0.5
# A thread that has not come round for this many of its own intervals is stuck.
_STUCK_AFTER = 6

log = structlog.get_logger(__name__)


class Runtime:
    """The threads of a registered worker, from the first heartbeat to the last write."""

    def __init__(
        self,
        settings: Settings,
        me: RegisteredWorker,
        lifecycle: Lifecycle,
        control_db: Database,
        slots_db: Database,
        watch: Watch,
    ) -> None:
        worker = settings.worker
        self._settings = worker
        self._me = me
        self._lifecycle = lifecycle
        self._db = control_db
        self._tools = Tools(
            db=slots_db,
            objects=ObjectStore(settings.storage),
            provider=TimedProvider(build_provider(settings.embedding, me.model)),
            parsing=settings.parsing,
            chunking=settings.chunking,
            lease_duration=worker.lease_duration,
        )
        errors = ErrorLog()
        self._book = LeaseBook(worker.lease_duration)
        reporter = Reporter(
            slots_db,
            worker.retry_policy,
            max_deferral=worker.max_deferral,
            on_internal_errors=self._give_up,
        )
        self._executor = Executor(slots_db, self._tools, reporter)
        self._slots = Slots(worker.max_concurrency, self._execute, lifecycle)
        self._heartbeat = HeartbeatThread(
            control_db,
            me,
            interval=worker.heartbeat_interval,
            running_jobs=lambda: self._slots.running,
            lifecycle=lifecycle,
            watch=watch,
            errors=errors,
        )
        self._renewals = LeaseThread(
            control_db,
            me,
            self._book,
            interval=worker.lease_renewal_interval,
            lifecycle=lifecycle,
            errors=errors,
        )
        self._poller = Poller(
            control_db, me, worker, slots=self._slots, book=self._book, lifecycle=lifecycle, errors=errors
        )
        self._poller_thread = threading.Thread(target=self._poller.run, name="poller", daemon=True)
        self._maintenance = MaintenanceLoop(
            Maintenance(control_db, settings.maintenance, worker.retry_policy, watch),
            Retention(control_db, settings.maintenance),
            interval=settings.maintenance.safety_net_interval,
            jitter=_SAFETY_NET_JITTER,
        )

    def start(self) -> None:
        """Start every thread; the poller last."""
        log.info("worker registered", worker_id=self._me.id, model=self._me.model.name)
        self._heartbeat.start()
        self._renewals.start()
        listener = self._db.listener()
        if listener is not None:
            _start("wake-ups", lambda: listen(listener, self._me, self._lifecycle, self._poller.wake))
        _start("maintenance", self._maintenance.run)
        self._poller_thread.start()

    def finish(self) -> None:
        """Drain, release what is left, say STOPPED; write nothing if the process was fenced meanwhile."""
        if self._lifecycle.is_silent():
            return
        log.info("draining", running_jobs=self._slots.running)
        # 1. No claim is under way any more; jobs that it brought now are given back by their slots.
        self._maintenance.stop()
        self._poller.wake()
        self._poller_thread.join(LIMIT)
        # 2. Running jobs go on, with heartbeats and renewals, until they end or the grace period does.
        self._drain()
        # 3. What is left can't be cancelled in its thread: it loses its sockets and its leases.
        self._renewals.stop()
        left = self._book.held()
        for lease in left:
            lease.lose()
        self._tools.provider.close()
        self._tools.objects.close()
        # 4. Its jobs are ready again for others at once.
        self._release_all(left)
        # 5. STOPPED is the last write: from here on every other thread is silent.
        self._heartbeat.stop()
        self._heartbeat.join(LIMIT)
        if self._lifecycle.is_silent():
            return
        self._lifecycle.go_silent(self._lifecycle.exit_code)
        try_to(lambda: workers.stop(self._db, self._me), "worker not marked as stopped")

    def stuck_thread(self) -> str:
        """Return the name of a thread that no longer comes round, if any; while draining none counts."""
        if self._lifecycle.ending.is_set():
            return ""
        now = time.monotonic()
        beat = self._settings.heartbeat_interval.total_seconds()
        poll = self._settings.idle_max_polling_interval.total_seconds()
        if now - self._heartbeat.last_turn > _STUCK_AFTER * beat + LIMIT:
            return "the heartbeat thread is stuck"
        if now - self._poller.last_turn > _STUCK_AFTER * poll + LIMIT:
            return "the poller is stuck"
        return ""

    def reaches_database(self) -> bool:
        """Tell whether the last heartbeat was answered."""
        return self._heartbeat.delivered

    def _execute(self, lease: Lease) -> None:
        is_settled = False
        try:
            if self._lifecycle.ending.is_set():
                self._release(lease)  # the claim's answer came after the signal: it is not started
                is_settled = True
            else:
                is_settled = self._executor.run(lease)
        finally:
            if is_settled:
                self._book.free(lease)
            else:
                self._book.forsake(lease)

    def _give_up(self) -> None:
        log.error("internal errors of several jobs in a row: this process ends")
        self._lifecycle.drain(ExitCode.ERROR)

    def _drain(self) -> None:
        grace = self._settings.shutdown_grace_period.total_seconds()
        deadline = time.monotonic() + grace
        while not self._lifecycle.hurried.is_set() and (left := deadline - time.monotonic()) > 0:
            if self._slots.wait_idle(min(left, 0.2)):
                return

    def _release_all(self, leases: Sequence[Lease]) -> None:
        """Release jobs side by side: one whose row a store of ours still holds must not keep the others back."""
        give_up_at = time.monotonic() + LIMIT
        threads = [_start("release", partial(self._release, lease)) for lease in leases]
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _release(self, lease: Lease) -> None:
        if self._lifecycle.is_silent():
            return
        try_to(
            lambda: release.release(self._tools.db, lease.claim, reason="the worker shuts down"),
            "job not released",
        )


def _start(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread
