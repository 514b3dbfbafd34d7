"""Ending what a killed supervisor left running; used by `up` before it starts, and by `down`.

Each child of a stack carries the stack's folder in its environment. That mark can not be lost, as a record of
pids could between a start and its writing, and can not be mistaken for another process, as a pid could. Only
PostgreSQL may run under another account, whose environment we can not read: it keeps its own record.
"""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import psutil

from docgrid_cli.local.postgres import end_leftovers as end_postgres
from docgrid_cli.local.process import kill_tree, wait_until_ended

MARK = "DOCGRID_LOCAL_STACK"
PART = "DOCGRID_LOCAL_PART"
WORKER = "worker"
SERVER = "server"
_SERVER_LIMIT = 3.0  # seconds
_POD_UID = "DOCGRID_WORKER_POD_UID"


@dataclass(frozen=True)
class Leftover:
    """A process that belongs to a stack which nobody supervises."""

    process: psutil.Process
    part: str
    pod_uid: str


def marked(home: Path, part: str) -> dict[str, str]:
    """Return the variables that mark a child process as a part of the stack in `home`."""
    return {MARK: str(home), PART: part}


def end(home: Path, *, limit: float) -> list[Leftover]:
    """End what runs of the stack in `home` and return it; the caller holds the stack's lock.

    Workers go first, while the servers that they need to give their jobs back still run. Each process is asked
    to stop, and killed with everything it started after `limit` seconds.
    """
    found = _find(home)
    _end([left.process for left in found if left.part == WORKER], limit=limit)
    _end([left.process for left in found if left.part != WORKER], limit=_SERVER_LIMIT)
    postgres = end_postgres(home / "postgres", limit=limit)
    return [*found, *(Leftover(process, SERVER, "") for process in postgres)]


def _find(home: Path) -> list[Leftover]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            environment = process.environ()
            if environment.get(MARK) == str(home):
                found.append(Leftover(process, environment[PART], environment.get(_POD_UID, "")))
    ours = {left.process.pid for left in found}
    return [left for left in found if left.process.ppid() not in ours]


def _end(processes: list[psutil.Process], *, limit: float) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    stubborn = wait_until_ended(processes, limit=limit)
    for process in stubborn:
        kill_tree(process.pid)
    wait_until_ended(stubborn, limit=limit)
