"""Whole worker processes for tests: `python -m docgrid_worker` as a child, its log, its endpoint, its end.

`settings_of_worker` are fast settings, so that a test of recovery takes a second; everything that a test waits
for is a line of the log, a row or the end of the process.
"""

import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from docgrid_core.jobs import WorkerId
from docgrid_core.settings import DatabaseSettings, StorageSettings
from support.logged_process import LoggedProcess

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


class WorkerProcess(LoggedProcess):
    """One running worker."""

    def __init__(self, environment: Mapping[str, str], *, log: Path) -> None:
        super().__init__("docgrid_worker", environment, log=log)

    @property
    def worker_id(self) -> WorkerId:
        """The id of the worker's row, once it is registered."""
        return WorkerId(self.wait_for_line("worker registered")["worker_id"])


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
