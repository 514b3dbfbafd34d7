"""A pytest plugin: a test run that leaves a process or a file behind fails.

The run gets a temp folder of its own (`TMPDIR`, for it and for every process that it starts); at the end
nothing but pytest's own folder may be in it, and it is removed. A process belongs to the run if it descends
from it, carries its mark in the environment, or names its temp folder on its command line or works in it, or
descends from one that does: so one whose parent was killed, or that dropped its environment, is found too.
"""

import contextlib
import os
import shutil
import tempfile
import uuid
from pathlib import Path

import psutil
import pytest

MARK = "DOCGRID_TEST_RUN"
FOLDER = "docgrid-tests-"
ENOUGH_MEMORY = 4 * 2**30


class LeakPlugin:
    """Owns the temp folder of the run and looks for what is left at its end."""

    def __init__(self) -> None:
        parent = choose_parent()
        clear_after_killed_runs(parent)
        self._mark = uuid.uuid4().hex
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}{os.getpid()}-", dir=parent))
        self._folder.chmod(0o755)  # a server that gave up root has to reach its own folder in here
        self._leaks: list[str] = []
        self._environment = {key: os.environ.get(key) for key in (MARK, "TMPDIR")}
        os.environ |= {MARK: self._mark, "TMPDIR": str(self._folder)}
        tempfile.tempdir = None  # read TMPDIR again

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Look for leaks once all fixtures are torn down; end the processes among them."""
        processes = self._find_processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._leaks.append(f"process {process.pid}: {' '.join(process.cmdline())}")
        for process in processes:  # only now: the end of one may be the end of its parent
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._leaks += [f"file {path.name}" for path in self._folder.iterdir() if not _is_of_pytest(path)]
        if self._leaks and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name what was left."""
        if self._leaks:
            terminalreporter.section("left behind", red=True)
        for leak in self._leaks:
            terminalreporter.write_line(f"FAILED: {leak}", red=True)

    def pytest_unconfigure(self) -> None:
        """Remove the temp folder and put the environment back."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for key, value in self._environment.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value
        tempfile.tempdir = None

    def _find_processes(self) -> set[psutil.Process]:
        me = psutil.Process()
        found = set(me.children(recursive=True))
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess):  # it may end while it is looked at
                if process != me and self._is_marked(process):
                    found |= {process, *process.children(recursive=True)}
        return found

    def _is_marked(self, process: psutil.Process) -> bool:
        if _names(self._folder, process):
            return True
        try:
            return process.environ().get(MARK) == self._mark
        except psutil.AccessDenied:
            return False  # another user's: it can not have come from this run


def choose_parent() -> Path:
    """Return where the temp folder goes: `TMPDIR` if it is set, else memory if there is plenty, else the disk.

    A test's database is some 300 files: on a disk it takes ten times as long to make as in memory.
    """
    memory = Path("/dev/shm")  # noqa: S108 - a folder with an unguessable name is made in it
    if "TMPDIR" not in os.environ and os.access(memory, os.W_OK):
        state = os.statvfs(memory)
        if state.f_bavail * state.f_frsize >= ENOUGH_MEMORY and not state.f_flag & os.ST_NOEXEC:
            return memory
    return Path(tempfile.gettempdir())


def clear_after_killed_runs(parent: Path) -> None:
    """End the processes and remove the temp folder of every run that was killed before it could."""
    for folder in parent.glob(f"{FOLDER}*"):
        if psutil.pid_exists(int(folder.name.removeprefix(FOLDER).partition("-")[0])):
            continue
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess):
                if _names(folder, process):
                    process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _names(folder: Path, process: psutil.Process) -> bool:
    told = process.cmdline()
    with contextlib.suppress(psutil.AccessDenied):  # another user's
        told.append(process.cwd())
    return any(str(folder) in text for text in told)


def _is_of_pytest(path: Path) -> bool:
    return path.name.startswith("pytest-of-")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(LeakPlugin(), "docgrid-leaks")
