"""Promises of a worker whose database goes away, restarts, starts slowly or only reads: nobody is fenced."""

import contextlib
import os
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
import pytest

from docgrid_cli.local.ports import free_ports
from docgrid_cli.local.postgres import EmbeddedPostgres
from docgrid_core.errors import DatabaseUnavailable
from docgrid_core.jobs import JobId
from docgrid_core.migrations import migrate
from docgrid_core.settings import StorageSettings
from docgrid_core.testing.invariants import violations
from support import tables
from support.database import create_database, drop_database, settings_of
from support.fake_provider import FakeProvider
from support.races import wait_until
from support.servers import embedded_postgres
from support.site import Site, fake_site
from support.worker_process import DEAD_THRESHOLD, WorkerProcess, get

# Longer than any outage here: a lease that runs out meanwhile is another promise.
LONG_LEASE = {"worker_lease_duration": "10m"}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with embedded_postgres() as running:
        yield running


@pytest.fixture
def site(
    server: EmbeddedPostgres, storage_settings: StorageSettings, provider: FakeProvider, tmp_path: Path
) -> Iterator[Site]:
    url = server.url("postgres")
    name = create_database(url, template="template1")
    try:
        settings = settings_of(url, name)
        migrate(settings)
        with fake_site(settings, storage_settings, provider, folder=tmp_path) as made:
            yield made
            assert violations(made.db) == []
    finally:
        if not server.answers():  # the test failed in the middle of an outage
            server.start()
        drop_database(url, name)


def run_job(site: Site, provider: FakeProvider) -> tuple[WorkerProcess, JobId]:
    """Start a worker; return it and its job, which waits for the provider."""
    provider.gate.clear()
    job_id = site.ingest("rides it out")
    worker = site.start(worker_max_concurrency="1", **LONG_LEASE)
    provider.wait_for_requests(1)
    return worker, job_id


def come_back(site: Site, server: EmbeddedPostgres) -> None:
    """Start the server again and wait until the test's own connections are made anew."""
    server.start()
    wait_until(lambda: reaches_database(site))


def reaches_database(site: Site) -> bool:
    """Tell whether the test itself reaches the database."""
    with contextlib.suppress(DatabaseUnavailable):
        return bool(tables.value(site.db, "SELECT true"))
    return False


def tick_until_watched(site: Site) -> None:
    """Run maintenance until it has watched for a whole dead-threshold; nobody may be declared dead by it."""
    began: list[datetime] = []

    def watched() -> bool:
        with contextlib.suppress(DatabaseUnavailable):
            report = site.tick()
            assert (report.ended, report.recovered.settled) == ((), 0)
            now = tables.value(site.db, "SELECT clock_timestamp()")
            began.append(now)
            return bool(now - began[0] > timedelta(seconds=2 * DEAD_THRESHOLD))
        return False

    wait_until(watched)


def require_unharmed(site: Site, worker: WorkerProcess, job_id: JobId) -> None:
    """Require that worker and job got through: one attempt, no retry, still alive."""
    assert [row.status for row in tables.attempts(site.db, job_id)] == ["SUCCESS"]
    assert tables.job(site.db, job_id).retry_count == 0
    assert worker.exit_code is None
    assert tables.worker(site.db, worker.worker_id).status in {"ACTIVE", "IDLE"}


def warnings(worker: WorkerProcess) -> list[datetime]:
    """Return the times of the warnings and errors that the worker has logged."""
    lines = [line for line in worker.lines() if line["level"] in {"warning", "error", "critical"}]
    return [datetime.fromisoformat(line["time"]) for line in lines]


def warned_for(worker: WorkerProcess) -> timedelta:
    """Return the time between the worker's first and last warning."""
    times = warnings(worker)
    return times[-1] - times[0] if times else timedelta(0)


def errors_per_second(worker: WorkerProcess) -> int:
    """Return the most warnings and errors that the worker logged within any one second."""
    times = warnings(worker)
    return max(
        (sum(timedelta(0) <= other - time < timedelta(seconds=0.95) for other in times) for time in times),
        default=0,
    )


def test_an_outage_longer_than_the_dead_threshold_fences_nobody_and_costs_no_retry(
    site: Site, server: EmbeddedPostgres, provider: FakeProvider
) -> None:
    worker, job_id = run_job(site, provider)
    site.tick()
    server.stop()
    provider.gate.set()  # its result has to wait for the database
    wait_until(lambda: warned_for(worker) > timedelta(seconds=2 * DEAD_THRESHOLD))
    with pytest.raises(DatabaseUnavailable):
        site.tick()  # the observer has seen the outage too
    come_back(site, server)
    tick_until_watched(site)
    site.wait_indexed(job_id)
    require_unharmed(site, worker, job_id)
    assert errors_per_second(worker) == 1


def test_an_outage_makes_a_worker_unready_but_its_pod_stays_in_its_pool(
    site: Site, server: EmbeddedPostgres
) -> None:
    port = free_ports()
    site.start_registered(worker_health_port=str(port))
    server.stop()
    wait_until(lambda: get(port, "/readyz") == (503, "the database can not be reached\n"))
    assert get(port, "/servingz") == get(port, "/livez") == (200, "ok\n")
    come_back(site, server)
    wait_until(lambda: get(port, "/readyz") == (200, "ok\n"))


def test_a_server_killed_under_running_jobs_costs_no_retry(
    site: Site, server: EmbeddedPostgres, provider: FakeProvider
) -> None:
    worker, job_id = run_job(site, provider)
    assert server.child is not None
    os.kill(server.child.identity.pid, signal.SIGKILL)
    server.child.wait(10)
    come_back(site, server)
    provider.gate.set()
    site.wait_indexed(job_id)
    require_unharmed(site, worker, job_id)


def test_wake_ups_come_back_after_a_restart_case_12(site: Site, server: EmbeddedPostgres) -> None:
    # Polling alone would find the job an hour later.
    worker = site.start_registered(
        worker_polling_interval="1h", worker_idle_max_polling_interval="1h", **LONG_LEASE
    )
    site.wait_indexed(site.ingest("before"))
    listening = sessions_that_listen(site)
    server.stop()
    come_back(site, server)
    wait_until(lambda: sessions_that_listen(site) - listening)
    site.wait_indexed(site.ingest("after"))
    assert worker.exit_code is None


def sessions_that_listen(site: Site) -> set[int]:
    """Return the sessions of workers that wait for wake-ups."""
    with contextlib.suppress(DatabaseUnavailable):
        rows = tables.fetch(
            site.db,
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'docgrid-worker %' AND query LIKE 'LISTEN%'",
        )
        return {row.pid for row in rows}
    return set()


class StartingServer:
    """Answers every client as a PostgreSQL that is still starting up; a context manager."""

    _REFUSAL = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"

    def __init__(self, port: int) -> None:
        self.refused = 0
        self._listener = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._run, name="starting-server")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(5)
                if client.recv(1024)[4:8] == b"\x04\xd2\x16\x2f":  # asks for TLS first
                    client.sendall(b"N")
                    client.recv(1024)
                client.sendall(b"E" + struct.pack("!i", len(self._REFUSAL) + 4) + self._REFUSAL)
                self.refused += 1


def test_a_database_that_is_starting_up_ends_no_worker_and_fills_no_log_case_12(
    site: Site, server: EmbeddedPostgres, provider: FakeProvider
) -> None:
    worker, job_id = run_job(site, provider)
    server.stop()
    with StartingServer(server.port) as starting:
        wait_until(lambda: warned_for(worker) > timedelta(seconds=2 * DEAD_THRESHOLD))
        assert starting.refused > 3
    come_back(site, server)
    provider.gate.set()
    site.wait_indexed(job_id)
    require_unharmed(site, worker, job_id)
    assert errors_per_second(worker) == 1


def test_a_worker_that_starts_before_its_database_registers_when_it_is_there(
    site: Site, server: EmbeddedPostgres
) -> None:
    job_id = site.ingest("patient")
    server.stop()
    worker = site.start()
    worker.wait_for_line("not registered yet")
    come_back(site, server)
    site.wait_indexed(job_id)


def test_a_server_that_turned_read_only_is_left_and_work_goes_on_when_it_writes_again_case_11(
    site: Site, provider: FakeProvider
) -> None:
    worker, job_id = run_job(site, provider)
    with read_only(site):
        before = worker_sessions(site)
        provider.gate.set()
        wait_until(lambda: warned_for(worker) > timedelta(0))
        # The pool is dropped: none of the sessions that met the read-only server is used again.
        wait_until(lambda: not worker_sessions(site) & before)
    site.wait_indexed(job_id)
    require_unharmed(site, worker, job_id)


@contextlib.contextmanager
def read_only(site: Site) -> Iterator[None]:
    """Let the server refuse writes, as a demoted primary does, until the block is left."""
    url = site.db._engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=off") as admin:
        admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        try:
            admin.execute("SELECT pg_reload_conf()")
            wait_until(lambda: is_read_only(site))
            yield
        finally:
            admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
            admin.execute("SELECT pg_reload_conf()")
    wait_until(lambda: not is_read_only(site))


def is_read_only(site: Site) -> bool:
    """Tell whether new transactions may only read."""
    return bool(tables.value(site.db, "SELECT current_setting('transaction_read_only')") == "on")


def worker_sessions(site: Site) -> set[int]:
    """Return the sessions of workers that run statements, not those that wait for wake-ups."""
    rows = tables.fetch(
        site.db,
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'docgrid-worker %' AND query NOT LIKE 'LISTEN%'",
    )
    return {row.pid for row in rows}


def test_without_a_database_a_worker_that_is_told_to_end_does_so_within_seconds(
    site: Site, server: EmbeddedPostgres, provider: FakeProvider
) -> None:
    worker, job_id = run_job(site, provider)
    server.stop()
    worker.drain()
    worker.wait_for_line("draining")
    worker.drain()
    assert worker.wait(20) == 0
    come_back(site, server)
    site.tick()
    wait_until(lambda: len(site.tick().ended) == 1)
    assert site.status(job_id) == "PENDING"
