"""The heartbeat: says that this process lives, and learns when it is fenced."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import DocGridError
from docgrid_core.maintenance import Watch
from docgrid_core.store import workers
from docgrid_core.store.workers import RegisteredWorker
from docgrid_worker.errorlog import ErrorLog
from docgrid_worker.lifecycle import ExitCode, Lifecycle
from docgrid_worker.metrics import HEARTBEATS

RETRY_INTERVAL = 1.0

log = structlog.get_logger(__name__)


class HeartbeatThread(threading.Thread):
    """Beats every interval until stopped; zero rows end the process, an unreachable database does not."""

    def __init__(
        self,
        db: Database,
        worker: RegisteredWorker,
        *,
        interval: timedelta,
        running_jobs: Callable[[], int],
        lifecycle: Lifecycle,
        watch: Watch,
        errors: ErrorLog,
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._db = db
        self._worker = worker
        self._interval = interval.total_seconds()
        self._running_jobs = running_jobs
        self._lifecycle = lifecycle
        self._watch = watch
        self._errors = errors
        self._stopped = threading.Event()
        self.last_turn = time.monotonic()
        self.delivered = True

    def stop(self) -> None:
        """Beat no more."""
        self._stopped.set()

    def run(self) -> None:
        """Beat until stopped or fenced."""
        wait = self._interval
        while not self._stopped.wait(wait) and not self._lifecycle.is_silent():
            self.last_turn = time.monotonic()
            wait = self.beat_once()

    def beat_once(self) -> float:
        """Beat once; return the seconds to the next beat."""
        try:
            now = workers.heartbeat(self._db, self._worker, running_jobs=self._running_jobs())
        except DocGridError as error:
            self.delivered = False
            self._watch.lost()
            HEARTBEATS.labels(outcome="unreachable").inc()
            self._errors.warning("heartbeat not delivered", error_code=error.code)
            return min(RETRY_INTERVAL, self._interval)
        if now is None:
            HEARTBEATS.labels(outcome="fenced").inc()
            log.error("fenced: this worker was marked ended, it stops without writing anything")
            self._lifecycle.go_silent(ExitCode.FENCED)
            return 0.0
        self.delivered = True
        self._watch.reached(now)
        HEARTBEATS.labels(outcome="delivered").inc()
        return self._interval
