"""One worker process from its start to its exit code: register, run until told to end, finish.

`__main__` builds a `Worker` from the settings and calls `run`.
"""

import socket
import time
import uuid
from importlib.metadata import version

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import (
    Busy,
    DatabaseUnavailable,
    DatabaseUnusable,
    ModelNotFound,
    ModelNotSearchable,
    SettingsError,
)
from docgrid_core.health import HealthServer
from docgrid_core.maintenance import Watch
from docgrid_core.migrations import check_schema
from docgrid_core.store import workers
from docgrid_core.store.workers import APPLICATION_PREFIX, RegisteredWorker, WorkerIdentity
from docgrid_worker.lastwrites import try_to
from docgrid_worker.lifecycle import ExitCode, Lifecycle
from docgrid_worker.runtime import Runtime
from docgrid_worker.settings import Settings

_RETRY_INTERVAL = 1.0
_UNUSABLE_LIMIT = 15.0
"""Seconds of waiting for a database that a person has to repair: Kubernetes tells of it when the process has ended."""

log = structlog.get_logger(__name__)


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
        self._runtime: Runtime | None = None

    def run(self) -> ExitCode:
        """Live a whole life and return the code to exit with.

        Raises `SettingsError` for what only shows at the start (a taken port, the wrong provider for the model)
        and `DocGridError` when the worker could not be registered within the start-up limit.
        """
        self._start_health()
        me = self._register()
        if me is None:  # told to end before it began
            return self._lifecycle.exit_code
        runtime = self._build_runtime(me)
        runtime.start()
        self._runtime = runtime
        self._lifecycle.ending.wait()
        runtime.finish()
        log.info("worker exits", exit_code=int(self._lifecycle.exit_code))
        return self._lifecycle.exit_code

    def _start_health(self) -> None:
        worker = self._settings.worker
        if worker.health_port == 0:
            return
        HealthServer(
            worker.health_host,
            worker.health_port,
            setting="DOCGRID_WORKER_HEALTH_PORT",
            probes={
                "/livez": self._why_not_live,
                "/servingz": self._why_not_serving,
                "/readyz": self._why_not_ready,
            },
        ).start()

    def _why_not_live(self) -> str:
        return "" if self._runtime is None else self._runtime.stuck_thread()

    def _why_not_serving(self) -> str:
        """Say why it is no member of its pool. An outage is not a reason: it would make every pod unready at once."""
        if self._runtime is None:
            return "not registered"
        return "draining" if self._lifecycle.ending.is_set() else ""

    def _why_not_ready(self) -> str:
        reaches_database = self._runtime is not None and self._runtime.reaches_database()
        return self._why_not_serving() or ("" if reaches_database else "the database can not be reached")

    def _register(self) -> RegisteredWorker | None:
        """Register, trying again for the start-up limit: database and model may come up after the worker."""
        limit = self._settings.worker.registration_timeout.total_seconds()
        started = time.monotonic()
        while not self._lifecycle.ending.is_set():
            try:
                check_schema(self._control_db)
                return workers.register(self._control_db, self._identity())
            except (DatabaseUnavailable, Busy, ModelNotSearchable, ModelNotFound) as error:
                patience = min(limit, _UNUSABLE_LIMIT) if isinstance(error, DatabaseUnusable) else limit
                if time.monotonic() >= started + patience:
                    raise
                log.warning("not registered yet", error_code=error.code, reason=error.message)
            self._lifecycle.ending.wait(_RETRY_INTERVAL)
        return None

    def _build_runtime(self, me: RegisteredWorker) -> Runtime:
        try:
            return Runtime(self._settings, me, self._lifecycle, self._control_db, self._slots_db, self._watch)
        except SettingsError:  # the provider is not the model's: only known now that the model is
            try_to(lambda: workers.stop(self._control_db, me), "worker not marked as stopped")
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
            model_version=worker.model_version,
            namespace=worker.namespace,
            pod_name=worker.pod_name,
            pod_uid=worker.pod_uid,
            node_name=worker.node_name,
            indexing_worker=worker.indexing_worker,
            indexing_worker_uid=worker.indexing_worker_uid,
        )


def _address_of(host: str) -> str:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""
