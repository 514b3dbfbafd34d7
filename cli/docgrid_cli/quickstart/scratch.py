"""The folder of one quickstart, and what killed ones left behind."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import psutil

from docgrid_cli.local.stack import down

_PREFIX = "docgrid-quickstart-"
STACK = "stack"
"""The stack's own folder within that of the quickstart."""


def make_folder() -> Path:
    """Make a folder for this process; as root, PostgreSQL runs under another account and gets through."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    folder.chmod(0o711)
    return folder


def clear_killed_runs() -> None:
    """End the processes and remove the folder of every quickstart of this user whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.geteuid() and pid.isdigit() and not psutil.pid_exists(int(pid)):
                down(folder / STACK)
                shutil.rmtree(folder)
