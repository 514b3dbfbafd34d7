"""Child processes of the local stack: in sessions of their own, known by pid and start time, ended whole.

`Server` and the worker pool start their processes here; `state` ends those that a killed supervisor left.
"""

import contextlib
import os
import pwd
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from docgrid_cli.local.errors import LocalStackError

_CLOCK_STEP = 2.0  # seconds by which a start time may seem to move when the machine's clock is set
_ERROR = re.compile(r"\b(FATAL|ERROR|\w*[eE]rror):")
_LOG_LIMIT = 10_000_000  # bytes


@dataclass(frozen=True)
class Account:
    """The unprivileged account that a server runs under when we are root."""

    uid: int
    gid: int


def unprivileged_account() -> Account | None:
    """Return the account to drop to, or None when this process is not root."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise LocalStackError("running as root needs an account `nobody` to run PostgreSQL under") from None
    return Account(uid=entry.pw_uid, gid=entry.pw_gid)


@dataclass(frozen=True)
class Identity:
    """One process: a pid alone may belong to another one by the time it is looked up."""

    pid: int
    started_at: float  # seconds since the epoch

    def find(self) -> psutil.Process | None:
        """Return the process if it still runs; a zombie has ended."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_at) < _CLOCK_STEP
            if same and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None


@dataclass(frozen=True)
class Launch:
    """How a process is started, and how it is asked to end."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    account: Account | None = None
    stop_signal: signal.Signals = signal.SIGTERM


class ChildProcess:
    """A running child: reaped by its own thread the moment it ends.

    It leads a session of its own: a Ctrl-C in the terminal reaches only us, and we end our children in order.
    """

    def __init__(self, launch: Launch, *, on_end: Callable[[], None] | None = None) -> None:
        """Start the process; `on_end` is called in the reaping thread once it is reaped."""
        self.log = launch.log
        self._on_end = on_end
        self.stop_signal = launch.stop_signal
        self._ended = threading.Event()
        self._popen = _spawn(launch)
        self.identity = Identity(pid=self._popen.pid, started_at=_start_time(self._popen.pid))
        threading.Thread(target=self._reap, name=f"reap-{self.identity.pid}", daemon=True).start()

    @property
    def exit_code(self) -> int | None:
        """The exit code (-N: ended by signal N), or None while the process runs."""
        return self._popen.returncode if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds; tell whether the process has ended."""
        return self._ended.wait(timeout)

    def ask_to_stop(self) -> None:
        """Send the stop signal and return at once."""
        if not self._ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.identity.pid, self.stop_signal)

    def stop(self, *, limit: float) -> None:
        """Ask the process to end and, after `limit` seconds, kill it with everything it started."""
        self.ask_to_stop()
        if not self.wait(limit):
            self.kill()

    def kill(self) -> None:
        """Kill the process and everything it started, and wait until it is reaped."""
        if not self._ended.is_set():
            kill_tree(self.identity.pid)
        self._ended.wait()

    def _reap(self) -> None:
        self._popen.wait()
        # What is left of the group keeps its id from being given to another; an empty group is not found.
        _kill_group(self.identity.pid)
        self._ended.set()
        if self._on_end is not None:
            self._on_end()


def kill_tree(pid: int) -> None:
    """Send SIGKILL to a process, its descendants and its group; none of them can outrun the list."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        process.suspend()
        tree = [process, *process.children(recursive=True)]
        for member in tree:
            with contextlib.suppress(psutil.Error):
                member.kill()
    _kill_group(pid)


def wait_until_ended(processes: Iterable[psutil.Process], *, limit: float) -> list[psutil.Process]:
    """Wait up to `limit` seconds for processes that are not our children; return those that still run.

    A zombie has ended: in a container, nobody may ever reap it.
    """
    give_up = time.monotonic() + limit
    running = [process for process in processes if _runs(process)]
    while running and time.monotonic() < give_up:
        time.sleep(0.02)
        running = [process for process in running if _runs(process)]
    return running


def last_line(log: Path) -> str:
    """Return the line at the end of a log that says why its process ended, "" if there is none."""
    with contextlib.suppress(OSError), log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 8192))
        return telling_line(stream.read().decode(errors="replace"))
    return ""


def telling_line(output: str) -> str:
    """Return the last line that names an error, without what stands before it; else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line[found.start() :] for line in lines if (found := _ERROR.search(line))]
    return (telling or lines or [""])[-1]


def _spawn(launch: Launch) -> "subprocess.Popen[bytes]":
    account = launch.account
    try:
        _rotate(launch.log)
        with launch.log.open("ab") as log:
            return subprocess.Popen(
                list(launch.command),
                env=dict(launch.environment),
                cwd=launch.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
    except OSError as error:
        raise LocalStackError(f"can not start {Path(launch.command[0]).name}: {error.strerror}") from error


def _rotate(log: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_LIMIT:
            log.replace(log.with_suffix(".log.1"))


def _start_time(pid: int) -> float:
    return psutil.Process(pid).create_time()


def _runs(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
