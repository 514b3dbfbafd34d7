"""Errors that repeat while something is away: at most one line a second, from all threads of a worker together."""

import threading
import time

import structlog

INTERVAL = 1.0

log = structlog.get_logger(__name__)


class ErrorLog:
    """Passes one warning a second on, and tells how many it has held back since the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passed_at = float("-inf")
        self._held_back = 0

    def warning(self, message: str, **fields: object) -> None:
        """Log a warning, unless another one was logged within the last second."""
        with self._lock:
            now = time.monotonic()
            if now - self._passed_at < INTERVAL:
                self._held_back += 1
                return
            held_back, self._held_back, self._passed_at = self._held_back, 0, now
        log.warning(message, held_back=held_back, **fields)
