"""The thread of the supervisor that talks to the database: ended workers first, then maintenance.

What is done there is a `Caretaker`, so that the supervisor itself knows processes and no database.
"""

import contextlib
import json
import queue
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from docgrid_cli.local.events import EventKind, Reporter, StackEvent
from docgrid_cli.local.home import write_private
from docgrid_core.errors import DocGridError
from docgrid_core.jobs import StopReason

_RETRY = 0.5  # seconds between tries while the database is away


class Caretaker(Protocol):
    """What is done in the database; a call that raises `DocGridError` is repeated."""

    def worker_ended(self, pod_uid: str, reason: StopReason) -> None:
        """Record that this worker's process has ended; said again, it changes nothing."""

    def tick(self) -> None:
        """Run maintenance once."""


class WorkerLedger:
    """Pod uids of the workers whose end is not in the database yet, in a file that outlives this process.

    A worker is entered before it starts. So the next `up` can tell the database about the workers of a killed
    supervisor, and their jobs need not wait until the heartbeats are overdue.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._open: list[str] = []
        with contextlib.suppress(OSError, ValueError):  # a lost file costs the jobs the wait, nothing else
            self._open = json.loads(path.read_text())

    def entries(self) -> list[str]:
        """Return the pod uids that are entered."""
        with self._lock:
            return list(self._open)

    def enter(self, pod_uid: str) -> None:
        """Remember a worker that is about to start."""
        with self._lock:
            self._open.append(pod_uid)
            self._save()

    def strike(self, pod_uid: str) -> None:
        """Forget a worker whose end is in the database."""
        with self._lock:
            self._open = [uid for uid in self._open if uid != pod_uid]
            self._save()

    def _save(self) -> None:
        with contextlib.suppress(OSError):
            write_private(self._path, json.dumps(self._open))


@dataclass(frozen=True)
class _Ended:
    pod_uid: str
    reason: StopReason


class MaintenanceThread:
    """Calls the caretaker the moment a worker has ended, and every `interval` seconds.

    While the database is away it keeps what it has to say, and says it as soon as the database is back.
    """

    def __init__(
        self, caretaker: Caretaker, *, ledger: WorkerLedger, interval: float, report: Reporter
    ) -> None:
        self._caretaker = caretaker
        self._ledger = ledger
        self._interval = interval
        self._report = report
        self._inbox: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        self._unrecorded: list[_Ended] = []
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)

    def start(self) -> None:
        """Run maintenance at once and from then on."""
        self._thread.start()

    def worker_ended(self, pod_uid: str, reason: StopReason) -> None:
        """Have the end of a worker recorded, and its jobs recovered; returns at once."""
        self._inbox.put(_Ended(pod_uid, reason))

    def finish(self) -> None:
        """Stop after one more try to record what is not recorded yet."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        going_on = True
        while going_on:
            done = self._care()
            going_on = self._receive(until=time.monotonic() + (self._interval if done else _RETRY))
        self._care()

    def _receive(self, *, until: float) -> bool:
        """Wait for the first message, at most until then, and take all; tell whether to go on."""
        with contextlib.suppress(queue.Empty):
            message = self._inbox.get(timeout=max(0.0, until - time.monotonic()))
            while message is not None:
                self._unrecorded.append(message)
                message = self._inbox.get_nowait()
            return False
        return True

    def _care(self) -> bool:
        try:
            # 1. Ended workers are marked, which fences them; 2. maintenance then takes their jobs back.
            while self._unrecorded:
                ended = self._unrecorded[0]
                self._caretaker.worker_ended(ended.pod_uid, ended.reason)
                self._ledger.strike(ended.pod_uid)
                del self._unrecorded[0]
            self._caretaker.tick()
        except DocGridError as error:
            self._tell_once(error)
            return False
        if self._failing:
            self._failing = False
            self._report(StackEvent(EventKind.READY, "database", "the database answers again"))
        return True

    def _tell_once(self, error: DocGridError) -> None:
        if not self._failing:
            self._failing = True
            self._report(StackEvent(EventKind.FAILED, "database", f"{error} (tried again until it works)"))
