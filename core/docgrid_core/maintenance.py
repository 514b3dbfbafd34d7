"""Maintenance: what keeps the queue moving when workers end, retries come due and rows grow old.

Hosted by the operator, by the local stack's supervisor, by `docgrid maintain`, and by every worker as a slow
safety net. Any number may run at once: the database serializes them. Each service has `run_once`; whoever
hosts it decides when.
"""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import Busy, DatabaseUnavailable, DocGridError
from docgrid_core.jobs import JobId
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import MaintenanceSettings
from docgrid_core.store import claim, prune, recovery, workers
from docgrid_core.store.recovery import RecoveryReport
from docgrid_core.store.workers import OverdueWorker

log = structlog.get_logger(__name__)


class Watch:
    """Since when this process has reached the database without a gap: the right to call others overdue.

    A failed call is a gap, and so are two calls too far apart: what happened between them was not seen. Shared
    by the threads of a process that reach the database anyway.
    """

    def __init__(self, *, longest_gap: timedelta) -> None:
        self._longest_gap = longest_gap
        self._since: datetime | None = None
        self._last: datetime | None = None
        self._lock = threading.Lock()

    def reached(self, now: datetime) -> datetime:
        """Note a call that was answered at `now`, the database's time; return the start of the watch."""
        with self._lock:
            if self._since is None or self._last is None or now - self._last > self._longest_gap:
                self._since = now
            self._last = max(now, self._last or now)
            return self._since

    def lost(self) -> None:
        """Note a call that failed."""
        with self._lock:
            self._since = None


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did; `ended` are the workers whose heartbeat was overdue."""

    ended: tuple[OverdueWorker, ...]
    recovered: RecoveryReport
    promoted: int


class Maintenance:
    """One tick of everything that must happen within seconds: mark overdue, recover, promote."""

    def __init__(
        self, db: Database, settings: MaintenanceSettings, policy: RetryPolicy, watch: Watch
    ) -> None:
        self._db = db
        self._settings = settings
        self._policy = policy
        self._watch = watch

    def run_once(self) -> TickReport:
        """Run one tick; raises `DatabaseUnavailable` or `Busy`, after which the next tick starts afresh."""
        try:
            watched_since = self._watch.reached(workers.read_clock(self._db))
            ended = workers.mark_overdue(self._db, watched_since=watched_since)
            workers.terminate_sessions_of_ended(self._db)
            recovered = recover(self._db, limit=self._settings.batch, policy=self._policy)
            promoted = claim.promote(self._db)
        except DocGridError:
            self._watch.lost()
            raise
        if ended or recovered.settled:
            log.info(
                "workers or jobs recovered",
                workers_ended=len(ended),
                released=recovered.released,
                retried=recovered.retried,
                failed=recovered.failed,
            )
        return TickReport(tuple(ended), recovered, promoted)


class Retention:
    """Deletes what is too old to keep: begun every `retention_interval`, a short turn at each call.

    However much there is to delete, recovery never waits for it longer than one turn.
    """

    TURN = 1.0  # seconds

    def __init__(self, db: Database, settings: MaintenanceSettings) -> None:
        self._db = db
        self._settings = settings
        self._interval = settings.retention_interval.total_seconds()
        self._due_at = time.monotonic() + self._interval
        self._batches: Iterator[prune.PruneReport] = iter(())

    def run_once(self) -> prune.PruneReport:
        """Delete for one turn if retention is due or not done yet; return what was deleted."""
        started_at = time.monotonic()
        if started_at >= self._due_at:
            self._due_at = started_at + self._interval
            self._batches = prune.batches(self._db, self._settings)
        total = prune.PruneReport()
        for batch in self._batches:
            total += batch
            if time.monotonic() - started_at >= self.TURN:
                break
        return total


class MaintenanceLoop:
    """Runs maintenance on a schedule until told to stop, and at once when woken.

    `jitter` in 0..1 shortens each wait by up to that part, so that many hosts do not tick in step.
    """

    def __init__(
        self,
        maintenance: Maintenance,
        retention: Retention,
        *,
        interval: timedelta,
        jitter: float = 0.0,
    ) -> None:
        self._maintenance = maintenance
        self._retention = retention
        self._interval = interval.total_seconds()
        self._jitter = jitter
        self._wake = threading.Event()
        self._stopping = False

    def wake(self) -> None:
        """Run the next tick at once: a worker is known to have ended."""
        self._wake.set()

    def stop(self) -> None:
        """Let `run` return after the tick that is under way."""
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        """Tick until `stop`; an unreachable database is logged once, then waited out."""
        reachable = True
        while not self._stopping:
            self._wake.clear()
            try:
                self._maintenance.run_once()
                self._retention.run_once()
                reachable = True
            except DocGridError as error:
                if reachable:
                    log.warning("maintenance failed", error_code=error.code)
                reachable = False
            if not self._stopping:
                self._wake.wait(self._interval * (1 - self._jitter * random.random()))  # noqa: S311 - jitter


def recover(db: Database, *, limit: int, policy: RetryPolicy) -> RecoveryReport:
    """Recover every job that needs it, batch by batch; stop where another process is at it.

    A batch that fails is repeated job by job, and the job that fails is quarantined, so that it neither blocks
    its batch nor hides the jobs behind it.
    """
    total = RecoveryReport()
    given_up: set[JobId] = set()
    while True:
        hopeless = len(given_up)
        try:
            report = recovery.recover_batch(db, limit=limit, policy=policy, excluded=given_up)
        except (Busy, DatabaseUnavailable):
            raise
        except DocGridError as error:
            log.error("a batch can not be recovered", error_code=error.code)
            report = _recover_singly(db, limit=limit, policy=policy, given_up=given_up)
        if report is None:
            return total
        if not report.settled and len(given_up) == hopeless:
            return total
        total += report


def _recover_singly(db: Database, *, limit: int, policy: RetryPolicy, given_up: set[JobId]) -> RecoveryReport:
    total = RecoveryReport()
    for job_id in recovery.lock_candidates(db, limit=limit, excluded=given_up):
        try:
            total += recovery.recover_one(db, job_id, policy=policy)
        except (Busy, DatabaseUnavailable):
            raise
        except DocGridError as error:
            log.error("a job can not be recovered", job_id=job_id, error_code=error.code)
            total += _quarantine(db, job_id, given_up)
    return total


def _quarantine(db: Database, job_id: JobId, given_up: set[JobId]) -> RecoveryReport:
    try:
        return recovery.quarantine_one(db, job_id)
    except (Busy, DatabaseUnavailable):
        raise
    except DocGridError as error:
        given_up.add(job_id)
        log.error("a job can not even be quarantined", job_id=job_id, error_code=error.code)
        return RecoveryReport()
