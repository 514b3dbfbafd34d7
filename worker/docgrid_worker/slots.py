"""The slots: how many jobs this process runs at a time, each in a thread of its own.

A slot is reserved before the claim, so that no job is claimed for which there is no room, and freed exactly
once whatever happens in it.
"""

import queue
import threading
from collections.abc import Callable

import structlog

from docgrid_worker.leases import Lease
from docgrid_worker.lifecycle import ExitCode, Lifecycle
from docgrid_worker.metrics import SLOTS_BUSY

log = structlog.get_logger(__name__)


class Slots:
    """A fixed number of threads that run leases; `on_free` is called whenever a slot becomes free."""

    def __init__(self, count: int, execute: Callable[[Lease], None], lifecycle: Lifecycle) -> None:
        self._execute = execute
        self._lifecycle = lifecycle
        self._free = count
        self._running = 0
        self._changed = threading.Condition()
        self._inbox: queue.SimpleQueue[Lease] = queue.SimpleQueue()
        self.on_free: Callable[[], None] = lambda: None
        for number in range(count):
            threading.Thread(target=self._work, name=f"slot-{number}", daemon=True).start()

    @property
    def running(self) -> int:
        """How many jobs run now."""
        with self._changed:
            return self._running

    def reserve(self) -> int:
        """Reserve every free slot for a claim and return how many; each is then started or given back."""
        with self._changed:
            reserved, self._free = self._free, 0
            return reserved

    def give_back(self, count: int) -> None:
        """Return reserved slots that the claim could not fill."""
        with self._changed:
            self._free += count

    def start(self, lease: Lease) -> None:
        """Run a lease in a reserved slot."""
        with self._changed:
            self._running += 1
            SLOTS_BUSY.set(self._running)
        self._inbox.put(lease)

    def wait_idle(self, seconds: float) -> bool:
        """Wait until no job runs, at most so long; return whether none does."""
        with self._changed:
            return self._changed.wait_for(lambda: self._running == 0, seconds)

    def _work(self) -> None:
        while True:
            lease = self._inbox.get()
            try:
                self._execute(lease)
            except BaseException as error:  # noqa: BLE001 - out of memory, or told to exit: not the job's failure
                self._lifecycle.go_silent(ExitCode.ERROR)  # first: without memory, a log line may fail
                log.critical("the process is no longer sound and ends", error_type=type(error).__name__)
            finally:
                with self._changed:
                    self._running -= 1
                    self._free += 1
                    SLOTS_BUSY.set(self._running)
                    self._changed.notify_all()
                self.on_free()
