"""Why and how this process is ending: the one thing that every thread of a worker watches."""

import threading
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells whoever started it."""

    DRAINED = 0
    ERROR = 1
    BAD_SETTINGS = 2
    FENCED = 75


class Lifecycle:
    """Running, then draining (the slots may finish), or silent (nothing more is written).

    `ending` is set in both cases; `hurried` ends the grace period of a drain.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exit_code = ExitCode.DRAINED
        self._silent = False
        self._signaled = False
        self.ending = threading.Event()
        self.hurried = threading.Event()

    @property
    def exit_code(self) -> ExitCode:
        """The code to exit with."""
        return self._exit_code

    def is_silent(self) -> bool:
        """Tell whether the process may no longer write: it is fenced, or no longer sound."""
        return self._silent

    def drain(self, exit_code: ExitCode = ExitCode.DRAINED) -> None:
        """Stop claiming and let the slots finish; a process that is ending already goes on as it was told first."""
        with self._lock:
            if not self.ending.is_set():
                self._exit_code = exit_code
                self.ending.set()

    def on_signal(self) -> None:
        """Drain at the first signal; the second one ends the grace period."""
        if self._signaled:
            self.hurried.set()
        self._signaled = True
        self.drain()

    def go_silent(self, exit_code: ExitCode) -> None:
        """End at once without writing anything: whoever recovers the jobs knows better than this process."""
        with self._lock:
            if not self._silent:
                self._silent = True
                self._exit_code = exit_code
            self.hurried.set()
            self.ending.set()
