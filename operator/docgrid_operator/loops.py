"""Loops: a `run_once` on a schedule, in a thread of its own, that survives what its rounds meet.

Every background duty of the operator is one: resync, maintenance, liveness, status, views, events. A round that
fails with an error of ours is normal (a database or an apiserver is away) and is waited out; one that fails with
anything else is a defect, and ten in a row turn the liveness probe red.
"""

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import structlog

from docgrid_core.errors import DocGridError
from docgrid_operator import metrics
from docgrid_operator.cluster import ClusterError, TooManyRequests

log = structlog.get_logger(__name__)

ERROR_BUDGET = 10
"""Rounds in a row that may end in an unexpected error."""
LONGEST_STEP = 120.0
"""Seconds without progress after which a round counts as stuck: every call in it has a time limit far below."""
RETRY_INTERVAL = 5.0
"""Seconds at most from a round that failed to the next: what was away may be back."""


_running = threading.local()


def note_progress() -> None:
    """Note that the loop whose round this thread runs gets on: one of many calls may take long in all."""
    if loop := getattr(_running, "loop", None):
        loop.progress()


class Loop:
    """Runs `run_once` every `interval`, from begin to begin, and at once when woken, until told to stop.

    `wake` may come from any thread. Wakes that come close together cost one round: `rest` seconds lie between
    the end of one and the begin of the next. The first round waits for `after`.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], object],
        *,
        interval: timedelta,
        rest: float = 0.2,
        after: threading.Event | None = None,
    ) -> None:
        self.name = name
        self._after = after
        self._run_once = run_once
        self._interval = interval.total_seconds()
        self._rest = rest
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._progress_at: float | None = None  # None between two rounds
        self._defects = 0
        self._failing = ""

    def start(self) -> None:
        """Begin with a round at once, or as soon as what it waits for has happened."""
        self._thread.start()

    def wake(self) -> None:
        """Have the next round begin at once."""
        self._wake.set()

    def stop(self) -> None:
        """Begin no further round."""
        self._stop.set()
        self._wake.set()

    def join(self, timeout: float) -> None:
        """Wait until the round that is under way has ended, `timeout` seconds at most."""
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def progress(self) -> None:
        """Note that the round under way gets on."""
        self._progress_at = time.monotonic()

    @property
    def problem(self) -> str:
        """What is wrong with the loop itself, for the liveness probe; empty if nothing."""
        progress_at = self._progress_at
        if progress_at is not None and time.monotonic() - progress_at > LONGEST_STEP:
            return f"the loop {self.name} is stuck"
        if self._defects >= ERROR_BUDGET:
            return f"the loop {self.name} fails every time"
        if self._thread.ident is not None and not self._thread.is_alive() and not self._stop.is_set():
            return f"the loop {self.name} has ended"
        return ""

    def _run(self) -> None:
        _running.loop = self
        if self._after is not None:
            self._after.wait()
        while not self._stop.is_set():
            self._wake.clear()
            began = time.monotonic()
            pause = self._round()
            self._stop.wait(pause or self._rest)
            interval = min(self._interval, RETRY_INTERVAL) if self._failing else self._interval
            self._wake.wait(max(0.0, began + interval - time.monotonic()))

    def _round(self) -> float:
        """Run one round; return how long the apiserver asked to be left alone."""
        self._progress_at = started_at = time.monotonic()
        error, pause = "", 0.0
        try:
            self._run_once()
        except TooManyRequests as refusal:
            error, pause = "TooManyRequests", refusal.retry_after
        except (DocGridError, ClusterError) as failure:
            error = getattr(failure, "code", type(failure).__name__)
        except Exception as defect:  # noqa: BLE001 - a loop outlives its round; the text may carry anything
            self._defects += 1
            error = type(defect).__name__
            log.error("a loop met an unexpected error", loop=self.name, error_type=error)
        else:
            self._defects = 0
            metrics.LOOP_SUCCESS_TIME.labels(loop=self.name).set_to_current_time()
        self._progress_at = None
        metrics.LOOP_SECONDS.labels(loop=self.name).observe(time.monotonic() - started_at)
        self._report(error)
        return pause

    def _report(self, error: str) -> None:
        """Log the first of the rounds that fail alike, and the first that succeeds again."""
        if error:
            metrics.LOOP_FAILURES.labels(loop=self.name, error=error).inc()
        if error != self._failing:
            if error:
                log.warning("a loop fails", loop=self.name, error=error)
            else:
                log.info("a loop works again", loop=self.name)
        self._failing = error
