"""Promises of the whole local stack, with its real servers and workers."""

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from minio import Minio

from docgrid_cli.local import profile
from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.events import EventKind
from docgrid_cli.local.home import holder, home_folder
from docgrid_cli.local.ports import LOOPBACK
from docgrid_cli.local.profile import BUCKET, Profile
from docgrid_cli.local.stack import LocalStack, down
from docgrid_core.errors import SettingsError
from docgrid_core.settings import DatabaseSettings, EmbeddingSettings, StorageSettings, load
from support.local_stack import EventLog, wait_until
from support.servers import scratch_folder

UP = """
import contextlib, sys, threading
from pathlib import Path
from docgrid_cli.local.stack import LocalStack, running
with contextlib.suppress(KeyboardInterrupt), running(LocalStack(Path(sys.argv[1]), workers=1)):
    print("ready", flush=True)
    # In turns: a signal that comes just before an endless wait begins would not break it off.
    while not threading.Event().wait(0.5):
        pass
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with scratch_folder() as folder:
        yield folder / "my DocGrid"


@contextlib.contextmanager
def stack(home: Path, *, workers: int = 0, report: EventLog | None = None) -> Iterator[Profile]:
    built = LocalStack(home, workers=workers, report=report or EventLog())
    try:
        yield built.start()
    finally:
        built.stop()


@contextlib.contextmanager
def other_supervisor(home: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run a stack with one worker under a supervisor in another process, which the test may kill."""
    command = [sys.executable, "-c", UP, str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()
            down(home)


def processes_of(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told = [*process.cmdline(), process.cwd(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(home) in text for text in told):
                found.append(process)
    return found


def rows(reach: Profile, query: str) -> list[tuple[object, ...]]:
    with contextlib.closing(psycopg.connect(reach.database_url, autocommit=True)) as connection:
        cursor = connection.execute(query)
        return list(cursor.fetchall()) if cursor.description else []


def object_store(reach: Profile) -> Minio:
    return Minio(
        f"{LOOPBACK}:{reach.s3_port}",
        access_key=reach.s3_access_key,
        secret_key=reach.s3_secret_key,
        secure=False,
        region="us-east-1",
    )


def test_data_are_kept_from_one_up_to_the_next_also_when_the_ports_are_taken_meanwhile(home: Path) -> None:
    with stack(home) as first:
        rows(first, "CREATE TABLE kept AS SELECT 42 AS answer")
        object_store(first).put_object(BUCKET, "kept", io.BytesIO(b"still here"), length=10)
    with contextlib.ExitStack() as takers:
        for port in (first.postgres_port, first.s3_port, first.model_port):
            takers.enter_context(socket.create_server((LOOPBACK, port)))
        with stack(home) as second:
            assert {second.postgres_port, second.s3_port}.isdisjoint({first.postgres_port, first.s3_port})
            assert rows(second, "SELECT answer FROM kept") == [(42,)]
            assert object_store(second).get_object(BUCKET, "kept").data == b"still here"
    with stack(home) as third:
        assert third == second


def test_a_second_up_says_who_runs_the_first_and_disturbs_nothing(home: Path) -> None:
    with stack(home) as reach:
        other = LocalStack(home, workers=0)
        message = rf"already running \(pid {os.getpid()}, since 20.*`docgrid down`"
        with pytest.raises(LocalStackError, match=message):
            other.start()
        assert rows(reach, "SELECT 1") == [(1,)]


def test_commands_find_a_running_stack_by_its_profile_which_is_private(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert profile.load(home) == {}
    with stack(home) as reach:
        assert (home / "profile.json").stat().st_mode & 0o077 == 0
        for key, value in profile.load(home).items():
            monkeypatch.setenv(key, value)
        assert load(DatabaseSettings).url.get_secret_value() == reach.database_url
        assert load(StorageSettings).endpoint == f"{LOOPBACK}:{reach.s3_port}"
        assert load(EmbeddingSettings).base_url == f"http://{LOOPBACK}:{reach.model_port}"
        assert reach.s3_secret_key not in repr(reach)
    (home / "profile.json").write_text("{}")
    with pytest.raises(LocalStackError, match="damaged: delete it"):
        profile.load(home)


def test_a_killed_worker_is_dead_in_the_database_at_once(home: Path) -> None:
    log = EventLog()
    built = LocalStack(home, workers=1, report=log)
    try:
        reach = built.start()
        statuses = "SELECT status, stop_reason FROM worker_nodes ORDER BY id"
        wait_until(lambda: len(rows(reach, statuses)) == 1, timeout=30)
        (worker,) = built.workers()
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(lambda: rows(reach, statuses)[0] == ("DEAD", "Error"), timeout=2)
        wait_until(lambda: len(rows(reach, statuses)) == 2, timeout=30)
        assert rows(reach, statuses)[1][0] in {"ACTIVE", "IDLE"}
    finally:
        built.stop()
    assert processes_of(home) == []


def test_down_ends_what_a_killed_supervisor_left_and_a_second_down_finds_nothing(home: Path) -> None:
    with other_supervisor(home) as supervisor:
        supervisor.kill()
        supervisor.wait()
        assert len(processes_of(home)) > 3
        assert down(home)
        wait_until(lambda: processes_of(home) == [])
        reach = profile.read(home)
        assert reach is not None
        assert not list(Path("/tmp").glob(f"seaweedfs-*-{reach.s3_port}.sock"))  # noqa: S108 - its fixed place
        assert not down(home)


def test_the_next_up_takes_over_from_a_killed_supervisor(home: Path) -> None:
    with other_supervisor(home) as supervisor:
        orphan_worker = "SELECT count(*) FROM worker_nodes WHERE status IN ('ACTIVE', 'IDLE')"
        earlier = profile.read(home)
        assert earlier is not None
        wait_until(lambda: rows(earlier, orphan_worker) == [(1,)], timeout=30)
        supervisor.kill()
        supervisor.wait()
        log = EventLog()
        with stack(home, report=log) as reach:
            log.wait_for(EventKind.STOPPED, "stack")
            wait_until(lambda: rows(reach, orphan_worker) == [(0,)])
            assert reach == earlier


def test_down_stops_a_running_stack_and_its_supervisor_ends_well(home: Path) -> None:
    with other_supervisor(home) as supervisor:
        assert holder(home) is not None
        assert down(home)
        assert supervisor.wait(timeout=10) == 0
        assert holder(home) is None
        assert processes_of(home) == []


def test_a_bring_up_that_is_interrupted_leaves_nothing_running(home: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", UP, str(home)], stdout=subprocess.PIPE)
    with process:
        wait_until((home / "postgres").exists, timeout=30)
        process.terminate()
        process.terminate()
        assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 0
    assert processes_of(home) == []


def test_a_wrong_setting_is_named_before_anything_is_started(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCGRID_WORKER_MAX_CONCURRENCY", "0")
    with pytest.raises(SettingsError, match="DOCGRID_WORKER_MAX_CONCURRENCY=0"):
        LocalStack(home, workers=1).start()
    assert not home.exists()


def test_a_failed_bring_up_leaves_nothing_running(home: Path) -> None:
    home.mkdir()
    (home / "model").touch()
    with pytest.raises(LocalStackError, match="model"):
        LocalStack(home, workers=1).start()
    assert processes_of(home) == []
    assert holder(home) is None


def test_a_home_that_can_not_be_made_is_one_clear_line(home: Path) -> None:
    home.touch()
    with pytest.raises(LocalStackError, match=r"can not .*my DocGrid.*set DOCGRID_HOME"):
        LocalStack(home, workers=0).start()


def test_the_home_lies_where_the_environment_says() -> None:
    assert home_folder({"DOCGRID_HOME": "/x y"}) == Path("/x y")
    assert home_folder({"XDG_DATA_HOME": "/data"}) == Path("/data/docgrid")
    assert home_folder({}) == Path.home() / ".local/share/docgrid"
