"""Promises of the single servers of the local stack: PostgreSQL, S3 and embeddings."""

import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import psycopg
import pytest

from docgrid_cli.local import postgres_files
from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.events import EventKind
from docgrid_cli.local.keepers import ServerKeeper
from docgrid_cli.local.modelserver import ModelServer
from docgrid_cli.local.objectstore import PORTS, ObjectStoreServer
from docgrid_cli.local.ports import LOOPBACK, free_ports
from docgrid_cli.local.postgres import EmbeddedPostgres
from docgrid_cli.local.process import unprivileged_account, wait_until_ended
from docgrid_cli.local.server import Server
from support.local_stack import EventLog
from support.servers import scratch_folder

SECRET = secrets.token_hex(16)


def build_postgres(folder: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder / "a database", port=free_ports(), durable=False)


def build_objects(folder: Path) -> ObjectStoreServer:
    port = free_ports(count=PORTS)
    return ObjectStoreServer(folder / "an object store", port=port, access_key="key", secret_key=SECRET)


def build_model(folder: Path) -> ModelServer:
    return ModelServer(folder / "a model", port=free_ports())


BUILDERS: list[Callable[[Path], Server]] = [build_postgres, build_objects, build_model]


@pytest.fixture
def folder() -> Iterator[Path]:
    with scratch_folder() as scratch:
        yield scratch


@pytest.fixture(params=BUILDERS, ids=["postgres", "objects", "model"])
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[Server]:
    built: Server = request.param(folder)
    yield built
    built.stop()


@pytest.fixture
def postgres(folder: Path) -> Iterator[EmbeddedPostgres]:
    built = build_postgres(folder)
    built.start()
    yield built
    built.stop()


def pid_of(server: Server) -> int:
    assert server.child is not None
    return server.child.identity.pid


def test_a_killed_server_answers_again_by_itself(server: Server) -> None:
    log = EventLog()
    keeper = ServerKeeper(server, log)
    keeper.start()
    keeper.wait_until_ready()
    first = pid_of(server)
    os.kill(first, signal.SIGKILL)
    assert "SIGKILL" in log.wait_for(EventKind.ENDED, server.name).text
    log.wait_for(EventKind.READY, server.name, count=2)
    assert server.answers()
    assert pid_of(server) != first
    keeper.ask_to_stop()
    keeper.join()
    assert not server.answers()


def test_a_frozen_server_is_killed_and_started_again(folder: Path) -> None:
    server, log = build_postgres(folder), EventLog()
    keeper = ServerKeeper(server, log, health_interval=0.05)
    keeper.start()
    keeper.wait_until_ready()
    os.kill(pid_of(server), signal.SIGSTOP)
    log.wait_for(EventKind.UNRESPONSIVE, server.name)
    log.wait_for(EventKind.READY, server.name, count=2)
    keeper.ask_to_stop()
    keeper.join()


def test_a_server_listens_on_loopback_only_and_shows_no_secret(server: Server, folder: Path) -> None:
    server.start()
    process = psutil.Process(pid_of(server))
    listening = [one.laddr.ip for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
    assert set(listening) == {LOOPBACK}
    secrets_of_it = [SECRET]
    if isinstance(server, EmbeddedPostgres):
        secrets_of_it = [server.url().split(":")[2].split("@")[0]]
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(server.url().replace(secrets_of_it[0], "wrong"))
    logs = "".join(log.read_text() for log in folder.glob("*/*.log"))
    shown = "".join(" ".join(one.cmdline()) for one in [process, *process.children(recursive=True)])
    assert not [secret for secret in secrets_of_it if secret in logs + shown]


def test_a_taken_port_is_named(server: Server) -> None:
    message = f"port {server.port} on 127.0.0.1 is taken"
    with socket.create_server((LOOPBACK, server.port)), pytest.raises(LocalStackError, match=message):
        server.start()


def test_a_folder_that_can_not_be_written_is_named(folder: Path) -> None:
    (folder / "a file").touch()
    for build in BUILDERS:
        with pytest.raises(LocalStackError, match=r"a file.*Not a directory"):
            build(folder / "a file").start()


def test_a_start_can_be_broken_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    abort = threading.Event()
    abort.set()
    monkeypatch.setattr(server, "is_ready", lambda: False)
    with pytest.raises(LocalStackError, match="broken off"):
        server.start(abort=abort)
    assert server.child is None


def test_committed_rows_survive_a_kill(postgres: EmbeddedPostgres) -> None:
    with closing(psycopg.connect(postgres.url(), autocommit=True)) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000)")
        os.kill(pid_of(postgres), signal.SIGKILL)
    assert postgres.child is not None
    postgres.child.wait()
    postgres.start()
    with closing(psycopg.connect(postgres.url())) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (1000,)


def test_a_backend_that_outlives_its_postmaster_does_not_hold_up_the_restart(
    postgres: EmbeddedPostgres,
) -> None:
    busy = psycopg.connect(postgres.url())
    backend = psutil.Process(busy.info.backend_pid)
    backend.suspend()  # so that it does not notice that its postmaster is gone
    os.kill(pid_of(postgres), signal.SIGKILL)
    assert postgres.child is not None
    postgres.child.wait()
    postgres.start()
    assert wait_until_ended([backend], limit=0) == []
    busy.close()


def test_a_pid_file_left_by_a_kill_does_not_block_the_start_when_its_pid_is_anothers(
    folder: Path,
) -> None:
    server = build_postgres(folder)
    server.start()
    pid_file = folder / "a database" / "data" / "postmaster.pid"
    left = pid_file.read_text().splitlines()
    server.stop()
    sleeper = psutil.Popen(["sleep", "600"])
    pid_file.write_text("\n".join([str(sleeper.pid), *left[1:]]))
    server.start()
    assert sleeper.poll() is None
    sleeper.kill()
    sleeper.wait()
    server.stop()


def test_a_half_made_database_is_made_anew(folder: Path) -> None:
    half = folder / "a database" / "data.new" / "base"
    half.mkdir(parents=True)
    server = build_postgres(folder)
    server.start()
    assert not half.exists()
    server.stop()


def test_a_database_can_lie_in_a_folder_that_only_its_owner_may_enter(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    server = build_postgres(closed)
    server.start()
    with closing(psycopg.connect(server.url())) as connection:
        connection.execute("CREATE EXTENSION vector")
    server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to give up its rights")
def test_root_copies_the_programs_when_the_server_may_not_reach_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o755)
    monkeypatch.setattr(postgres_files, "_ROOT_CACHE", folder / "cache")
    monkeypatch.setattr(postgres_files, "_readable_by_all", lambda _install: False)
    assert postgres_files.binaries(unprivileged_account()).is_relative_to(folder / "cache")
    server = build_postgres(folder)
    server.start()
    with closing(psycopg.connect(server.url())) as connection:
        connection.execute("CREATE EXTENSION vector")
    server.stop()
