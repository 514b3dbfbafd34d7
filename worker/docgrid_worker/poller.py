"""The poller: reserves free slots, claims that many jobs in one call, and waits when there is nothing to do."""

import random
import threading
import time
from collections.abc import Callable

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import DatabaseUnavailable, DocGridError
from docgrid_core.records import ClaimAnswer
from docgrid_core.settings import WorkerSettings
from docgrid_core.store import claim
from docgrid_core.store.workers import RegisteredWorker
from docgrid_core.wakeups import Listener
from docgrid_worker.errorlog import ErrorLog
from docgrid_worker.leases import LeaseBook
from docgrid_worker.lifecycle import Lifecycle
from docgrid_worker.metrics import CLAIM_SECONDS, CLAIMED, POLLS_SKIPPED, QUEUE_WAIT_SECONDS
from docgrid_worker.slots import Slots

PROMOTION_INTERVAL = 1.0
_LISTEN_TURN = 5.0
_LISTEN_RETRY = 1.0

log = structlog.get_logger(__name__)


class Poller:
    """Claims jobs for free slots until the process ends; `run` is its thread."""

    def __init__(
        self,
        db: Database,
        worker: RegisteredWorker,
        settings: WorkerSettings,
        *,
        slots: Slots,
        book: LeaseBook,
        lifecycle: Lifecycle,
        errors: ErrorLog,
    ) -> None:
        self._db = db
        self._worker = worker
        self._settings = settings
        self._slots = slots
        self._book = book
        self._lifecycle = lifecycle
        self._errors = errors
        self._wake = threading.Event()
        self._backoff = settings.polling_interval.total_seconds()
        self._swept_at = time.monotonic()
        self._answer_lost = False
        self._delayed_due = float("inf")
        self._promoted_at = 0.0
        self.last_turn = time.monotonic()
        slots.on_free = self.wake

    def wake(self) -> None:
        """Poll at once: a job is ready, a slot is free, or the process ends."""
        self._wake.set()

    def run(self) -> None:
        """Poll until the process ends."""
        while not self._lifecycle.ending.is_set():
            self.last_turn = time.monotonic()
            self._wake.clear()
            wait = self.poll_once()
            if wait > 0 and not self._lifecycle.ending.is_set():
                self._wake.wait(wait)

    def poll_once(self) -> float:
        """Claim for every free slot; return how many seconds to wait before the next poll."""
        reserved = self._slots.reserve()
        if reserved == 0:
            POLLS_SKIPPED.labels(reason="no free slot").inc()
            return self._settings.idle_max_polling_interval.total_seconds()
        started = 0
        try:
            self._sweep_when_due()
            self._promote_when_due()
            answer = self._claim(reserved)
            started = len(answer.claims)
        except DocGridError as error:
            POLLS_SKIPPED.labels(reason="error").inc()
            self._errors.warning("claim failed", error_code=error.code)
            return self._next_backoff()
        finally:
            self._slots.give_back(reserved - started)
        return self._after(answer, reserved)

    def _claim(self, reserved: int) -> ClaimAnswer:
        asked_at = time.monotonic()
        self._answer_lost = True
        answer = claim.claim(
            self._db, self._worker, limit=reserved, lease_duration=self._settings.lease_duration
        )
        self._answer_lost = False
        CLAIM_SECONDS.observe(time.monotonic() - asked_at)
        for claimed in answer.claims:
            CLAIMED.inc()
            QUEUE_WAIT_SECONDS.observe((claimed.locked_at - claimed.created_at).total_seconds())
            self._slots.start(self._book.enter(claimed, asked_at=asked_at))
        return answer

    def _after(self, answer: ClaimAnswer, reserved: int) -> float:
        """Return the wait that follows an answered claim: none while the queue gives, growing while it is empty."""
        wait = float("inf")
        if answer.next_delayed is not None:
            wait = answer.next_delayed.total_seconds()
        self._delayed_due = time.monotonic() + wait
        if answer.claims:
            self._backoff = self._settings.polling_interval.total_seconds()
            if len(answer.claims) == reserved:
                return self._settings.idle_max_polling_interval.total_seconds()  # a free slot wakes it
            return min(wait, self._backoff)
        POLLS_SKIPPED.labels(reason="empty queue").inc()
        return min(wait if wait > 0 else PROMOTION_INTERVAL, self._next_backoff())

    def _next_backoff(self) -> float:
        wait = self._backoff * random.uniform(0.5, 1)  # noqa: S311 - spreads the workers
        self._backoff = min(2 * self._backoff, self._settings.idle_max_polling_interval.total_seconds())
        return wait

    def _sweep_when_due(self) -> None:
        """Release what this worker holds without knowing it: after a failed claim, and now and then."""
        interval = self._settings.lease_renewal_interval.total_seconds()
        if not self._answer_lost and time.monotonic() - self._swept_at < interval:
            return
        released = claim.release_unknown(self._db, self._worker.id, self._book.tokens())
        self._swept_at = time.monotonic()
        self._answer_lost = False
        if released:
            log.warning("jobs of a lost claim answer released", jobs=len(released))

    def _promote_when_due(self) -> None:
        now = time.monotonic()
        if now >= self._delayed_due and now - self._promoted_at >= PROMOTION_INTERVAL:
            self._promoted_at = now
            claim.promote(self._db)


def listen(
    listener: Listener, model: RegisteredWorker, lifecycle: Lifecycle, wake: Callable[[], None]
) -> None:
    """Wake the poller whenever a job of the model becomes ready; the body of the wake-up thread."""
    while not lifecycle.ending.is_set():
        try:
            if listener.wait(model.model.id, _LISTEN_TURN):
                wake()
        except DatabaseUnavailable:
            lifecycle.ending.wait(_LISTEN_RETRY)
    listener.close()
