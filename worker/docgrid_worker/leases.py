"""The leases that this process holds: who may still work, until when, and the thread that renews them.

The database decides; what stands here is this process's belief, which can only make it stop earlier.
"""

import threading
import time
from collections.abc import Mapping
from datetime import timedelta

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import DocGridError
from docgrid_core.jobs import JobId
from docgrid_core.records import Claim, ClaimToken
from docgrid_core.store import leases as store
from docgrid_core.store.leases import Renewal
from docgrid_core.store.workers import RegisteredWorker
from docgrid_worker.errorlog import ErrorLog
from docgrid_worker.lifecycle import Lifecycle
from docgrid_worker.metrics import LEASES

BUSY_INTERVAL = 5.0
RETRY_INTERVAL = 1.0

log = structlog.get_logger(__name__)


class LeaseLost(Exception):
    """The job is no longer this execution's: it stops, and reports nothing."""


class Lease:
    """One claim and the belief in it; `deadline` is on the monotonic clock."""

    def __init__(self, claim: Claim, deadline: float) -> None:
        self.claim = claim
        self.deadline = deadline
        self._lost = threading.Event()

    def lose(self) -> None:
        """End the execution at its next look at the lease."""
        self._lost.set()

    @property
    def is_held(self) -> bool:
        """Tell whether the lease was not lost and has not run out."""
        return not self._lost.is_set() and time.monotonic() < self.deadline

    def check(self) -> None:
        """Raise `LeaseLost` unless the lease is held."""
        if not self.is_held:
            raise LeaseLost

    def wait(self, seconds: float) -> None:
        """Sleep, but wake when the lease is lost."""
        self._lost.wait(seconds)


class LeaseBook:
    """Every lease that the process holds, by job; an entry is made at the claim and freed once."""

    def __init__(self, duration: timedelta) -> None:
        self.duration = duration
        self._leases: dict[JobId, Lease] = {}
        self._lock = threading.Lock()

    def enter(self, claim: Claim, *, asked_at: float) -> Lease:
        """Note a claim that was asked for at `asked_at` (monotonic): its lease ends no later than believed."""
        lease = Lease(claim, asked_at + self.duration.total_seconds())
        with self._lock:
            self._leases[claim.job_id] = lease
        return lease

    def free(self, lease: Lease) -> None:
        """Forget a lease whose execution has ended."""
        with self._lock:
            if self._leases.get(lease.claim.job_id) is lease:
                del self._leases[lease.claim.job_id]

    def forsake(self, lease: Lease) -> None:
        """Give up a lease whose job the database still takes for running: its expiry brings recovery.

        The entry stays until this process claims the job again. Were it freed, the job would look like one of a
        lost claim answer and be released, at no cost and for ever again.
        """
        lease.lose()

    def held(self) -> list[Lease]:
        """Return the leases whose executions go on."""
        with self._lock:
            return [lease for lease in self._leases.values() if lease.is_held]

    def tokens(self) -> list[ClaimToken]:
        """Return the token of every entry, held or not: what this process knows of its claims."""
        with self._lock:
            return [lease.claim.token for lease in self._leases.values()]

    def _is_entered(self, lease: Lease) -> bool:
        with self._lock:
            return self._leases.get(lease.claim.job_id) is lease

    def __len__(self) -> int:
        with self._lock:
            return len(self._leases)

    def apply(self, renewals: Mapping[JobId, Renewal], leases: list[Lease], *, asked_at: float) -> bool:
        """Take in the answer to a renewal; return whether some were busy."""
        for lease in leases:
            if not self._is_entered(lease):
                continue  # its execution ended while the question was under way
            outcome = renewals.get(lease.claim.job_id, Renewal.LOST)
            LEASES.labels(outcome=outcome.lower()).inc()
            if outcome is Renewal.RENEWED:
                lease.deadline = asked_at + self.duration.total_seconds()
            elif outcome is Renewal.LOST:
                log.warning("lease lost", job_id=lease.claim.job_id)
                lease.lose()
            else:
                # Our own store holds the row, for as long as it takes: nobody else can have it meanwhile.
                lease.deadline = max(lease.deadline, asked_at + 3 * BUSY_INTERVAL)
        return Renewal.BUSY in renewals.values()


class LeaseThread(threading.Thread):
    """Renews all held leases in one statement, every interval, sooner when one was busy or the database away."""

    def __init__(
        self,
        db: Database,
        worker: RegisteredWorker,
        book: LeaseBook,
        *,
        interval: timedelta,
        lifecycle: Lifecycle,
        errors: ErrorLog,
    ) -> None:
        super().__init__(name="leases", daemon=True)
        self._db = db
        self._worker = worker
        self._book = book
        self._interval = interval.total_seconds()
        self._lifecycle = lifecycle
        self._errors = errors
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Renew nothing more."""
        self._stopped.set()

    def run(self) -> None:
        """Renew until stopped or silent."""
        wait = self._interval
        while not self._stopped.wait(wait) and not self._lifecycle.is_silent():
            wait = self.renew_once()

    def renew_once(self) -> float:
        """Renew all held leases; return the seconds to the next renewal."""
        held = self._book.held()
        if not held:
            return self._interval
        asked_at = time.monotonic()
        try:
            renewals = store.renew(
                self._db, self._worker, [lease.claim for lease in held], lease_duration=self._book.duration
            )
        except DocGridError as error:
            self._errors.warning("leases not renewed", error_code=error.code, leases=len(held))
            return min(RETRY_INTERVAL, self._interval)
        busy = self._book.apply(renewals, held, asked_at=asked_at)
        return min(BUSY_INTERVAL, self._interval) if busy else self._interval
