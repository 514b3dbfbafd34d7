"""Threads that keep one child process alive each: a server, or one place of the worker pool.

The supervisor starts them. A thread blocks on its own child, so an end is noticed the moment it is reaped, and a
slow restart of one part holds up no other.
"""

import contextlib
import signal
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.events import EventKind, Reporter, StackEvent
from docgrid_cli.local.process import ChildProcess, Launch
from docgrid_cli.local.server import Server
from docgrid_core.jobs import StopReason

HEALTH_INTERVAL = 2.0  # seconds
_MAX_MISSED = 3  # health checks in a row
_FENCED = 75  # the exit code of a worker that must not go on as the one it was


class Backoff:
    """Waits before restarts: none after a long life, growing while the process dies young (seconds)."""

    def __init__(self, *, young: float = 10.0, first: float = 0.5, longest: float = 15.0) -> None:
        self._young, self._first, self._longest = young, first, longest
        self._early_ends = 0

    def after(self, lived: float) -> float:
        """Return the wait after a life of `lived` seconds; one early end is forgiven."""
        self._early_ends = self._early_ends + 1 if lived < self._young else 0
        if self._early_ends < 2:
            return 0.0
        return min(self._first * 2.0 ** (self._early_ends - 2), self._longest)


class Keeper(ABC):
    """One thread and its child. Only this thread starts and ends the child."""

    def __init__(self, name: str, report: Reporter) -> None:
        self.name = name
        self._report = report
        self._stopping = threading.Event()
        self._wake = threading.Event()  # the child has ended, or this keeper shall
        self._thread = threading.Thread(target=self._run, name=f"keep {name}", daemon=True)

    def start(self) -> None:
        """Start the child and keep it."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Let the child end, and return at once."""
        self._stopping.set()
        self._wake.set()

    def join(self) -> None:
        """Wait until the child has ended after `ask_to_stop`."""
        self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...

    def _tell(self, kind: EventKind, text: str, *, pid: int | None = None) -> None:
        self._report(StackEvent(kind=kind, part=self.name, text=text, pid=pid))


class ServerKeeper(Keeper):
    """Keeps a server answering: starts it again when it ended, ends it first when it hangs."""

    def __init__(self, server: Server, report: Reporter, *, health_interval: float = HEALTH_INTERVAL) -> None:
        super().__init__(server.name, report)
        self._server = server
        self._health_interval = health_interval
        self._backoff = Backoff()
        self._first_start = threading.Event()
        self._error: LocalStackError | None = None

    def wait_until_ready(self) -> None:
        """Return once the server was ready for the first time; raises `LocalStackError` if it never is."""
        self._first_start.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._start()
        except LocalStackError as error:  # wrong from the beginning: a person has to see to it
            self._error = error
            return
        finally:
            self._first_start.set()
        while not self._stopping.is_set():
            born = time.monotonic()
            self._watch()
            if not self._stopping.is_set():
                self._restart(lived=time.monotonic() - born)
        self._server.stop()

    def _start(self) -> None:
        self._wake.clear()
        self._server.start(on_end=self._wake.set, abort=self._stopping)
        child = self._server.child
        pid = child.identity.pid if child else None
        self._tell(EventKind.READY, f"{self.name} is ready on port {self._server.port}", pid=pid)

    def _watch(self) -> None:
        """Return when the server has ended, or hung and was ended, or this keeper shall stop."""
        missed = 0
        while not self._stopping.is_set() and not self._wake.wait(self._health_interval):
            missed = 0 if self._server.answers() else missed + 1
            if missed == _MAX_MISSED and (child := self._server.child) is not None:
                self._tell(
                    EventKind.UNRESPONSIVE, f"{self.name} does not answer: it is killed and started again"
                )
                child.kill()

    def _restart(self, *, lived: float) -> None:
        how = _how(self._server.child)
        self._tell(EventKind.ENDED, f"{self.name} {how}: it is started again")
        while not self._stopping.wait(self._backoff.after(lived)):
            try:
                self._start()
            except LocalStackError as error:
                self._tell(EventKind.FAILED, str(error))
                lived = 0.0
            else:
                return


@dataclass(frozen=True)
class RunningWorker:
    """One worker process of the pool."""

    name: str
    pid: int
    pod_uid: str


class WorkerKeeper(Keeper):
    """Keeps one place of the worker pool taken; each process in it is a new worker with an identity of its own."""

    def __init__(
        self,
        name: str,
        *,
        launch: Callable[[str, str], Launch],
        ended: Callable[[str, StopReason], None],
        report: Reporter,
        grace: float,
    ) -> None:
        """Prepare a place.

        `launch` gets name and pod uid; `ended` gets the pod uid and the reason, the moment the process is reaped;
        `grace` is the time in seconds to finish running jobs at a stop.
        """
        super().__init__(name, report)
        self._launch = launch
        self._ended = ended
        self._grace = grace
        self._backoff = Backoff(young=5.0, longest=30.0)
        self._child: ChildProcess | None = None
        self.current: RunningWorker | None = None

    def hurry(self) -> None:
        """Tell a worker that drains a second time: it then gives its jobs back instead of finishing them."""
        if (child := self._child) is not None:
            child.ask_to_stop()

    def _run(self) -> None:
        while not self._stopping.is_set():
            born = time.monotonic()
            exit_code = self._live()
            if exit_code != _FENCED:  # a fenced worker has done right, and its successor starts at once
                self._stopping.wait(self._backoff.after(time.monotonic() - born))

    def _live(self) -> int | None:
        """Run one worker process from start to end; return its exit code, None if it did not start."""
        pod_uid = str(uuid.uuid4())
        child = self._child = self._spawn(pod_uid)
        if child is None:
            return None
        self.current = RunningWorker(name=self.name, pid=child.identity.pid, pod_uid=pod_uid)
        self._tell(EventKind.READY, f"{self.name} runs", pid=child.identity.pid)
        self._wake.wait()
        asked = self._stopping.is_set()
        child.stop(limit=self._grace)
        self._child = self.current = None
        self._ended(pod_uid, _reason(child.exit_code))
        if not asked:
            self._tell(EventKind.ENDED, f"{self.name} {_how(child)}", pid=child.identity.pid)
        return child.exit_code

    def _spawn(self, pod_uid: str) -> ChildProcess | None:
        self._wake.clear()
        if self._stopping.is_set():  # asked before the line above: `wake` would not tell any more
            return None
        try:
            return ChildProcess(self._launch(self.name, pod_uid), on_end=self._wake.set)
        except LocalStackError as error:
            self._tell(EventKind.FAILED, str(error))
            return None


def _reason(exit_code: int | None) -> StopReason:
    # The kernel's OOM killer can not be told from another SIGKILL here: both count as a crash.
    return StopReason.STOPPED if exit_code in {0, _FENCED} else StopReason.ERROR


def _how(child: ChildProcess | None) -> str:
    code = child.exit_code if child else None
    if child is None or code is None:
        return "ended"
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"(pid {child.identity.pid}) was ended by {signal.Signals(-code).name}"
    return f"(pid {child.identity.pid}) ended with exit code {code}, see {child.log}"
