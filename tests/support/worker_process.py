"""Whole worker processes for tests: `python -m docgrid_worker` as a child, its log, its endpoint, its end.

`settings_of_worker` are fast settings, so that a test of recovery takes a second; everything that a test waits
for is a line of the log, a row or the end of the process.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from docgrid_core.jobs import WorkerId
from docgrid_core.settings import DatabaseSettings, StorageSettings
from support.races import wait_until

DEAD_THRESHOLD = 1.5
"""Seconds; see `FAST`."""

FAST = {
    "DOCGRID_WORKER_POLLING_INTERVAL": "100ms",
    "DOCGRID_WORKER_IDLE_MAX_POLLING_INTERVAL": "300ms",
    "DOCGRID_WORKER_HEARTBEAT_INTERVAL": "300ms",
    "DOCGRID_WORKER_DEAD_THRESHOLD": f"{DEAD_THRESHOLD}s",
    "DOCGRID_WORKER_LEASE_DURATION": "3s",
    "DOCGRID_WORKER_LEASE_RENEWAL_INTERVAL": "500ms",
    "DOCGRID_WORKER_RETRY_INITIAL_DELAY": "100ms",
    "DOCGRID_WORKER_RETRY_MAX_DELAY": "1s",
    "DOCGRID_WORKER_SHUTDOWN_GRACE_PERIOD": "20s",
    "DOCGRID_WORKER_HEALTH_HOST": "127.0.0.1",
    "DOCGRID_WORKER_HEALTH_PORT": "0",
    # Tests run maintenance themselves.
    "DOCGRID_MAINTENANCE_SAFETY_NET_INTERVAL": "1h",
    "DOCGRID_DATABASE_CONNECT_TIMEOUT": "2s",
    "DOCGRID_STORAGE_CONNECT_TIMEOUT": "1s",
    "DOCGRID_STORAGE_READ_TIMEOUT": "3s",
    "DOCGRID_EMBEDDING_CONNECT_TIMEOUT": "1s",
}

Line = Mapping[str, Any]


class WorkerProcess:
    """One running worker. Its log is read from a file, as a log collector does."""

    def __init__(self, environment: Mapping[str, str], *, log: Path) -> None:
        self._log = log
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("DOCGRID_WORKER")}
        with log.open("wb") as stream:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "docgrid_worker"],
                env={**inherited, **environment},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code (-N: ended by signal N), or None while the process runs."""
        return self._child.poll()

    @property
    def worker_id(self) -> WorkerId:
        """The id of the worker's row, once it is registered."""
        return WorkerId(self.wait_for_line("worker registered")["worker_id"])

    def output(self) -> str:
        """Return everything that the process has written."""
        return self._log.read_text()

    def lines(self, event: str = "") -> list[Line]:
        """Return its log lines, or those of one event; a line that is no JSON object fails the test."""
        whole, _, _ = self.output().rpartition("\n")
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if event in ("", line["event"])]

    def wait_for_line(self, event: str, *, count: int = 1) -> Line:
        """Return the `count`-th line of an event, once it is there."""

        def there() -> bool:
            if len(self.lines(event)) >= count:
                return True
            assert self.exit_code is None, f"the worker ended with {self.exit_code}: {self.output()}"
            return False

        wait_until(there)
        return self.lines(event)[count - 1]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._child.send_signal(number)

    def drain(self) -> None:
        """Ask the process to end, as the kubelet does."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and wait until it is reaped; one that has ended stays as it is."""
        self._child.kill()
        self._child.wait(30)

    def freeze(self) -> None:
        """Stop the process, and wait until it stands still."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self.signal(signal.SIGCONT)

    def wait(self, limit: float = 30) -> int:
        """Wait for the end of the process and return its exit code."""
        return self._child.wait(limit)


def settings_of_worker(
    database: DatabaseSettings, storage: StorageSettings, **overrides: str
) -> dict[str, str]:
    """Return a worker's environment; `overrides` are the keys' ends, such as `worker_max_concurrency="1"`.

    `tmpdir` is where it makes its temporary files.
    """
    environment = {
        **FAST,
        "DOCGRID_DATABASE_URL": database.url.get_secret_value(),
        "DOCGRID_STORAGE_ENDPOINT": storage.endpoint,
        "DOCGRID_STORAGE_SECURE": "false",
        "DOCGRID_STORAGE_ACCESS_KEY": storage.access_key.get_secret_value(),
        "DOCGRID_STORAGE_SECRET_KEY": storage.secret_key.get_secret_value(),
        "DOCGRID_STORAGE_BUCKET": storage.bucket,
    }
    folder = overrides.pop("tmpdir", None)
    environment |= {f"DOCGRID_{key.upper()}": value for key, value in overrides.items()}
    return environment if folder is None else environment | {"TMPDIR": folder}


def get(port: int, path: str) -> tuple[int, str]:
    """Return status and body of a worker's endpoint."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()
