"""Wake-ups: telling workers that a job is ready, and waiting for it.

A wake-up only shortens a wait; polling alone is enough. So it is sent after the commit, outside the hot path
(NOTIFY inside a transaction serializes commits), at most once a second for each model's queue, and a lost one
costs one polling interval.
"""

import threading
import time
from collections.abc import Callable, Mapping

import psycopg
import structlog

from docgrid_core.errors import DatabaseUnavailable, DocGridError
from docgrid_core.jobs import ModelId

CHANNEL = "docgrid_ready"
INTERVAL = 1.0

log = structlog.get_logger(__name__)


class Notifier:
    """Sends wake-ups from a thread of its own, which starts with the first one.

    A wake-up within `INTERVAL` seconds of the last one of its queue is sent when that second has passed,
    unless it is urgent (recovery's).
    """

    def __init__(self, send: Callable[[ModelId], None]) -> None:
        self._send = send
        self._due: dict[ModelId, float] = {}
        self._last: dict[ModelId, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def announce(self, models: Mapping[ModelId, bool]) -> None:
        """Note that jobs of these models are ready; the value says whether it is urgent."""
        if not models:
            return
        now = time.monotonic()
        with self._changed:
            for model, urgent in models.items():
                due = now if urgent else max(now, self._last.get(model, 0.0) + INTERVAL)
                self._due[model] = min(due, self._due.get(model, due))
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="wakeups", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Send what is held back and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout=10)

    def _run(self) -> None:
        while (model := self._next()) is not None:
            try:
                self._send(model)
            except DocGridError as error:
                log.debug("wake-up not sent", error_code=error.code)

    def _next(self) -> ModelId | None:
        with self._changed:
            while True:
                now = time.monotonic()
                model = min(self._due, key=self._due.__getitem__, default=None)
                if model is not None and (self._closed or self._due[model] <= now):
                    del self._due[model]
                    self._last[model] = now
                    return model
                if model is None and self._closed:
                    return None
                self._changed.wait(None if model is None else self._due[model] - now)


class Listener:
    """A connection of its own that waits for wake-ups; used by one thread."""

    def __init__(self, connect: Callable[[], psycopg.Connection[tuple[object, ...]]]) -> None:
        self._connect = connect
        self._connection: psycopg.Connection[tuple[object, ...]] | None = None

    def wait(self, model: ModelId, timeout: float) -> bool:
        """Return True at a wake-up for `model`, False after `timeout` seconds without one.

        True also after connecting: what was announced while nobody listened is not known. Raises
        `DatabaseUnavailable` when the connection is lost; the next call connects again.
        """
        deadline = time.monotonic() + timeout
        try:
            if self._connection is None:
                self._connection = self._connect()
                self._connection.execute(f"LISTEN {CHANNEL}")
                return True
            while (left := deadline - time.monotonic()) > 0:
                for notice in self._connection.notifies(timeout=left, stop_after=1):
                    if notice.payload == str(model):
                        return True
        except psycopg.Error:
            self.close()
            raise DatabaseUnavailable from None
        return False

    def close(self) -> None:
        """Drop the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
