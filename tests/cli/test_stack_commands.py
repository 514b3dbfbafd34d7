"""Promises of `docgrid quickstart`, `up` and `down`, with everything real."""

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from docgrid_cli.quickstart.scratch import clear_killed_runs
from support.cli import Cli
from support.races import wait_until
from support.servers import scratch_folder


@pytest.fixture
def stack_cli(bare_cli: Cli) -> Iterator[Cli]:
    """Yield `docgrid` with a home that every account can reach, and see that nothing of it is left."""
    with scratch_folder() as folder:
        bare_cli.environment["DOCGRID_HOME"] = str(folder / "home")
        yield bare_cli
        assert bare_cli.run("down").out == "the local stack does not run\n"


def read_until(process: "subprocess.Popen[str]", sign: str) -> list[str]:
    """Read lines of a process up to the one that holds `sign`, which must come."""
    assert process.stdout is not None
    assert process.stderr is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if sign in line:
            return lines
    raise AssertionError("".join(lines) + process.stderr.read())


def quickstart_folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("docgrid-quickstart-*"))


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes that name the folder, on the command line or in the environment."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(folder) in text for text in told):
                found.append(process)
    return found


@pytest.mark.timeout(300)
def test_the_quickstart_holds_and_leaves_nothing_behind(bare_cli: Cli) -> None:
    answer = bare_cli.run("quickstart", limit=280)
    assert (answer.code, answer.err) == (0, ""), answer.out
    told = answer.out
    order = [
        "PostgreSQL is ready",
        "13 documents registered",
        "embeds handbook.md (job 1) at this moment: kill -9",
        "was ended by SIGKILL",
        "job 1 (handbook.md) is recovered",
        "job 1 (handbook.md) is claimed by ",
        "handbook.md is searchable",
        "old-catalogue.txt is broken on purpose. DOCUMENT-PARSING-003: the text is not UTF-8",
        "When must the dome be closed?",
        "What is the name of the cat?",
        "the database stops",
        "yes  12 of 12 whole documents are indexed",
        "yes  job 1 was recovered: 2 attempts, the last one succeeded",
        "yes  nothing was left running",
        "Everything held.",
    ]
    positions = [told.find(sign) for sign in order]
    assert -1 not in positions, (order[positions.index(-1)], told)
    assert positions == sorted(positions), told
    assert "\x1b" not in told
    assert quickstart_folders() == []


def test_ctrl_c_in_the_quickstart_stops_everything(bare_cli: Cli) -> None:
    with bare_cli.start("quickstart") as process:
        read_until(process, "worker-2 runs")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (130, "")
    assert "the database stops" in out
    assert quickstart_folders() == []


def test_what_a_killed_quickstart_left_is_cleared_by_the_next(bare_cli: Cli) -> None:
    with bare_cli.start("quickstart") as process:
        read_until(process, "worker-1 runs")
        (folder,) = quickstart_folders()
        process.kill()
    assert processes_of(folder)
    clear_killed_runs()
    assert not folder.exists()
    wait_until(lambda: not processes_of(folder))


def test_up_serves_other_commands_until_down_and_keeps_the_data(stack_cli: Cli, tmp_path: Path) -> None:
    document = tmp_path / "note.txt"
    document.write_text("The glacier moves slowly down the mountain.")
    with stack_cli.start("up", "--workers", "1") as process:
        read_until(process, "DocGrid is up")
        second = stack_cli.run("up")
        assert (second.code, second.out) == (1, "")
        assert f"the local stack is already running (pid {process.pid}," in second.err
        ingested = stack_cli("ingest", "--wait", str(document))
        assert (ingested.code, ingested.err) == (0, "1 INDEXED\n")
        assert "glacier" in stack_cli("search", "ice").out
        assert stack_cli("doctor", "--deep").code == 0
        down = stack_cli.run("down")
        assert (down.code, down.out) == (0, "the local stack is stopped, its data are kept\n")
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        assert out.endswith("the local stack is stopped, its data are kept\n")
    stopped = stack_cli("search", "ice")
    assert (stopped.code, stopped.out) == (1, "")
    assert stopped.err == "DATABASE-SETUP: the local stack does not run: start it with `docgrid up`\n"
    with stack_cli.start("up", "--workers", "0") as process:
        read_until(process, "DocGrid is up")
        assert "glacier" in stack_cli("search", "ice").out
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_down_cleans_up_after_a_killed_up(stack_cli: Cli) -> None:
    home = Path(stack_cli.environment["DOCGRID_HOME"])
    with stack_cli.start("up", "--workers", "1") as process:
        read_until(process, "worker-1 runs")
        process.kill()
    assert processes_of(home)
    down = stack_cli.run("down")
    assert (down.code, down.out) == (0, "the local stack is stopped, its data are kept\n")
    wait_until(lambda: not processes_of(home))


def test_a_stack_that_can_not_start_says_why_in_one_line(bare_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bare_cli.environment["DOCGRID_HOME"] = str(tmp_path / "file" / "home")
    answer = bare_cli.run("up")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.count("\n") == 1
    assert "(set DOCGRID_HOME)" in answer.err
