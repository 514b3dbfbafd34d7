"""A limit on writes a second: what is written for people to look at must not crowd out what workers need."""

import threading
import time


class Pace:
    """Spreads the writes of all its threads evenly."""

    def __init__(self, writes_per_second: int) -> None:
        self._gap = 1 / writes_per_second
        self._due = time.monotonic()
        self._lock = threading.Lock()

    def spend(self) -> None:
        """Wait after a write until the next one may be made."""
        with self._lock:
            now = time.monotonic()
            # What slow writes have fallen behind is not made up for: the apiserver is busy then.
            self._due = max(self._due, now - self._gap) + self._gap
            wait = self._due - now
        time.sleep(max(0.0, wait))
