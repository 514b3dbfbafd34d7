"""The folder of a local stack, and the lock that lets one supervisor work in it.

`DOCGRID_HOME` names it, else it lies where the platform keeps a user's data. The lock is the kernel's (flock),
so that it ends with its holder, however that ends; the file's text only says who it is.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import psutil

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.process import Identity


def home_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's local stack; nothing is made."""
    if environment.get("DOCGRID_HOME"):
        return Path(environment["DOCGRID_HOME"]).expanduser().absolute()
    data = environment.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local" / "share") / "docgrid"


def prepare(home: Path) -> None:
    """Make the folder; only its owner may look into it."""
    try:
        if not home.exists():
            home.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise LocalStackError(
            f"can not make the folder {home}: {error.strerror} (set DOCGRID_HOME)"
        ) from error


@contextlib.contextmanager
def locked(home: Path, *, patience: float = 0.0) -> Iterator[None]:
    """Hold the stack's lock, waiting up to `patience` seconds; raises `LocalStackError` that names its holder."""
    with contextlib.ExitStack() as undo:
        try:
            descriptor = os.open(_lock_file(home), os.O_RDWR | os.O_CREAT, 0o600)
            undo.callback(os.close, descriptor)
            _lock(descriptor, home, patience=patience)
            undo.callback(os.ftruncate, descriptor, 0)  # we may live on without being the holder
            os.write(descriptor, json.dumps(asdict(_myself())).encode())
        except OSError as error:
            raise LocalStackError(f"can not write in {home}: {error.strerror} (set DOCGRID_HOME)") from error
        yield


def holder(home: Path) -> Identity | None:
    """Return the process that runs the stack in this folder, if one does."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        identity = Identity(**json.loads(_lock_file(home).read_text()))
        return identity if identity.find() is not None else None
    return None


def write_private(path: Path, text: str) -> None:
    """Replace a file whole, readable by its owner alone."""
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)


def _lock(descriptor: int, home: Path, *, patience: float) -> None:
    give_up = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise LocalStackError(_already_running(home)) from None
            time.sleep(0.05)
        else:
            os.ftruncate(descriptor, 0)
            return


def _already_running(home: Path) -> str:
    other = holder(home)
    if other is None:
        return f"another docgrid command is starting or stopping the local stack in {home}: try again"
    since = datetime.fromtimestamp(other.started_at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"the local stack is already running (pid {other.pid}, since {since}): stop it with `docgrid down`"


def _myself() -> Identity:
    return Identity(pid=os.getpid(), started_at=psutil.Process().create_time())


def _lock_file(home: Path) -> Path:
    return home / "stack.lock"
