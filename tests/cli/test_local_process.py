"""Promises of a child process of the local stack."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.process import ChildProcess, Identity, Launch, last_line
from support.local_stack import wait_until

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid, flush=True)
time.sleep(600)
"""


def launch(folder: Path, *command: str) -> Launch:
    return Launch(command=command, environment={"PATH": os.defpath}, folder=folder, log=folder / "child.log")


def test_an_end_is_noticed_within_a_tenth_of_a_second(tmp_path: Path) -> None:
    ended = threading.Event()
    child = ChildProcess(launch(tmp_path, "sleep", "600"), on_end=ended.set)
    os.kill(child.identity.pid, signal.SIGKILL)
    started = time.monotonic()
    assert ended.wait(5)
    assert time.monotonic() - started < 0.1
    assert child.exit_code == -signal.SIGKILL


def test_a_child_that_ignores_the_stop_signal_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    child = ChildProcess(launch(tmp_path, sys.executable, "-c", STUBBORN))
    wait_until(lambda: len(child.log.read_text().split()) == 2)
    grandchildren = [int(pid) for pid in child.log.read_text().split()]
    child.stop(limit=0.1)
    assert child.exit_code == -signal.SIGKILL
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in grandchildren))


def test_a_frozen_child_can_be_killed(tmp_path: Path) -> None:
    child = ChildProcess(launch(tmp_path, "sleep", "600"))
    os.kill(child.identity.pid, signal.SIGSTOP)
    child.stop(limit=0.1)
    assert child.exit_code is not None


def test_a_pid_that_was_given_to_another_process_is_not_taken_for_the_old_one() -> None:
    me = psutil.Process()
    assert Identity(pid=me.pid, started_at=me.create_time()).find() == me
    assert Identity(pid=me.pid, started_at=me.create_time() - 60).find() is None


def test_a_program_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(LocalStackError, match=r"^can not start no-such-program: No such file or directory$"):
        ChildProcess(launch(tmp_path, "/no-such-program"))


def test_the_line_of_a_log_that_tells_why_is_found(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("LOG: starting\n2026-12-01 UTC [7] FATAL:  no space left\nLOG: bye\n")
    assert last_line(log) == "FATAL:  no space left"
    assert last_line(tmp_path / "missing.log") == ""
