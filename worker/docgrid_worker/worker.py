"""The order of a worker's life: register, beat, renew, poll; then drain, release what is left, STOPPED last.

`__main__` builds a `Worker` from the settings and calls `run`.
"""

import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TypeVar

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import (
    Busy,
    DatabaseUnavailable,
    DocGridError,
    ModelNotFound,
    ModelNotSearchable,
    SettingsError,
)
from docgrid_core.maintenance import Maintenance, MaintenanceLoop, Retention, Watch
from docgrid_core.migrations import check_schema
from docgrid_core.settings import (
    ChunkingSettings,
    DatabaseSettings,
    EmbeddingSettings,
    LogSettings,
    MaintenanceSettings,
    ParsingSettings,
    StorageSettings,
    WorkerSettings,
)
from docgrid_core.store import release, workers
from docgrid_core.store.workers import APPLICATION_PREFIX, RegisteredWorker, WorkerIdentity
from docgrid_pipeline.embeddings import build_provider
from docgrid_pipeline.objects import ObjectStore
from docgrid_pipeline.stages import Tools
from docgrid_worker.errorlog import ErrorLog
from docgrid_worker.execution import Executor
from docgrid_worker.health import HealthServer
from docgrid_worker.heartbeat import HeartbeatThread
from docgrid_worker.leases import Lease, LeaseBook, LeaseThread
from docgrid_worker.lifecycle import ExitCode, Lifecycle
from docgrid_worker.poller import Poller, listen
from docgrid_worker.slots import Slots

LAST_WRITE_LIMIT = 5.0
"""Seconds that a stopping worker gives to each of its last steps: a claim under way, its releases, STOPPED."""
_RETRY_INTERVAL = 1.0
_SAFETY_NET_JITTER = 0.5
# A thread that has not come round for this many of its own intervals is stuck.
_STUCK_AFTER = 6

T = TypeVar("T")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a worker reads, once, at its start."""

    database: DatabaseSettings
    worker: WorkerSettings
    maintenance: MaintenanceSettings
    chunking: ChunkingSettings
    parsing: ParsingSettings
    embedding: EmbeddingSettings
    storage: StorageSettings
    log: LogSettings


class Worker:
    """One worker process: its row, its threads, its connections. What a job does is the pipeline's."""

    def __init__(self, settings: Settings, lifecycle: Lifecycle) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._instance_id = uuid.uuid4()
        name = f"{APPLICATION_PREFIX}{self._instance_id}"
        # Heartbeats, renewals and claims never wait for a connection that a slot's long store holds, nor for
        # each other: as many as there are threads that use them (with maintenance and the sender of wake-ups).
        self._control_db = Database(settings.database, application_name=name, pool_size=5)
        self._slots_db = Database(
            settings.database, application_name=name, pool_size=settings.worker.max_concurrency
        )
        self._watch = Watch(longest_gap=1.5 * settings.worker.heartbeat_interval)
        self._running: _Running | None = None

    def run(self) -> ExitCode:
        """Live a whole life and return the code to exit with.

        Raises `SettingsError` for what only shows at the start (a taken port, the wrong provider for the model)
        and `DocGridError` when the worker could not be registered within the start-up limit.
        """
        self._start_health()
        me = self._register()
        if me is None:  # told to end before it began
            return self._lifecycle.exit_code
        running = self._build_running(me)
        running.start()
        self._running = running
        _start("maintenance", self._maintenance_loop().run)
        self._lifecycle.ending.wait()
        running.finish()
        log.info("worker exits", exit_code=int(self._lifecycle.exit_code))
        return self._lifecycle.exit_code

    def _start_health(self) -> None:
        worker = self._settings.worker
        if worker.health_port == 0:
            return
        HealthServer(
            worker.health_host, worker.health_port, live=self._why_not_live, ready=self._why_not_ready
        ).start()

    def _why_not_live(self) -> str:
        return "" if self._running is None else self._running.stuck_thread()

    def _why_not_ready(self) -> str:
        if self._running is None:
            return "not registered"
        if self._lifecycle.ending.is_set():
            return "draining"
        return "" if self._running.reaches_database() else "the database can not be reached"

    def _register(self) -> RegisteredWorker | None:
        """Register, trying again for the start-up limit: database and model may come up after the worker."""
        limit = self._settings.worker.registration_timeout.total_seconds()
        give_up_at = time.monotonic() + limit
        while not self._lifecycle.ending.is_set():
            try:
                check_schema(self._control_db)
                return workers.register(self._control_db, self._identity())
            except (DatabaseUnavailable, Busy, ModelNotSearchable, ModelNotFound) as error:
                if time.monotonic() >= give_up_at:
                    raise
                log.warning("not registered yet", error_code=error.code, reason=error.message)
            self._lifecycle.ending.wait(_RETRY_INTERVAL)
        return None

    def _build_running(self, me: RegisteredWorker) -> "_Running":
        try:
            return _Running(
                self._settings, me, self._lifecycle, self._control_db, self._slots_db, self._watch
            )
        except SettingsError:  # the provider is not the model's: only known now that the model is
            _try_to(lambda: workers.stop(self._control_db, me), "worker not marked as stopped")
            raise

    def _identity(self) -> WorkerIdentity:
        worker = self._settings.worker
        host = socket.gethostname()
        return WorkerIdentity(
            instance_id=self._instance_id,
            name=worker.name,
            host_name=host,
            ip_address=_address_of(host),
            version=version("docgrid"),
            max_concurrency=worker.max_concurrency,
            dead_threshold=worker.dead_threshold,
            model=worker.model,
            namespace=worker.namespace,
            pod_name=worker.pod_name,
            pod_uid=worker.pod_uid,
            node_name=worker.node_name,
            indexing_worker=worker.indexing_worker,
            indexing_worker_uid=worker.indexing_worker_uid,
        )

    def _maintenance_loop(self) -> MaintenanceLoop:
        settings = self._settings.maintenance
        return MaintenanceLoop(
            Maintenance(self._control_db, settings, self._settings.worker.retry_policy, self._watch),
            Retention(self._control_db, settings),
            interval=settings.safety_net_interval,
            retention_interval=settings.retention_interval,
            jitter=_SAFETY_NET_JITTER,
        )


class _Running:
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
            provider=build_provider(settings.embedding, me.model),
            parsing=settings.parsing,
            chunking=settings.chunking,
            lease_duration=worker.lease_duration,
        )
        errors = ErrorLog()
        self._book = LeaseBook(worker.lease_duration)
        self._executor = Executor(slots_db, self._tools, worker.retry_policy, self._give_up)
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

    def start(self) -> None:
        """Start every thread; the poller last."""
        log.info("worker registered", worker_id=self._me.id, model=self._me.model.name)
        self._heartbeat.start()
        self._renewals.start()
        listener = self._db.listener()
        if listener is not None:
            _start("wake-ups", lambda: listen(listener, self._me, self._lifecycle, self._poller.wake))
        self._poller_thread.start()

    def finish(self) -> None:
        """Drain, release what is left, say STOPPED; write nothing if the process was fenced meanwhile."""
        log.info("draining", running_jobs=self._slots.running)
        # 1. No claim is under way any more; jobs that it brought now are given back by their slots.
        self._poller.wake()
        self._poller_thread.join(LAST_WRITE_LIMIT)
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
        self._heartbeat.join(LAST_WRITE_LIMIT)
        if self._lifecycle.is_silent:
            return
        self._lifecycle.go_silent(self._lifecycle.exit_code)
        _try_to(lambda: workers.stop(self._db, self._me), "worker not marked as stopped")

    def stuck_thread(self) -> str:
        """Return the name of a thread that no longer comes round, if any; while draining none counts."""
        if self._lifecycle.ending.is_set():
            return ""
        now = time.monotonic()
        beat = self._settings.heartbeat_interval.total_seconds()
        poll = self._settings.idle_max_polling_interval.total_seconds()
        if now - self._heartbeat.last_turn > _STUCK_AFTER * beat + LAST_WRITE_LIMIT:
            return "the heartbeat thread is stuck"
        if now - self._poller.last_turn > _STUCK_AFTER * poll + LAST_WRITE_LIMIT:
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
        give_up_at = time.monotonic() + LAST_WRITE_LIMIT
        threads = [_start("release", partial(self._release, lease)) for lease in leases]
        for thread in threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _release(self, lease: Lease) -> None:
        if self._lifecycle.is_silent:
            return
        _try_to(
            lambda: release.release(self._tools.db, lease.claim, reason="the worker shuts down"),
            "job not released",
        )


def _try_to(write: Callable[[], T], failed: str) -> None:
    """Make one of the last writes; without the database, recovery does what it would have done."""
    give_up_at = time.monotonic() + LAST_WRITE_LIMIT
    while True:
        try:
            write()
        except (DatabaseUnavailable, Busy) as error:
            if time.monotonic() < give_up_at:
                time.sleep(_RETRY_INTERVAL / 5)
                continue
            log.warning(failed, error_code=error.code)
        except DocGridError as error:
            log.info(failed, error_code=error.code)
        return


def _start(name: str, run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _address_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""
