"""The whole local stack: what `docgrid up`, `down` and `quickstart` call.

Three servers, a pool of workers and maintenance under one supervisor, with all their files in one folder. The
data stay there from one `up` to the next.
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
from pydantic import SecretStr

from docgrid_cli.local import leftovers, profile
from docgrid_cli.local.blueprint import build_servers, worker_launch
from docgrid_cli.local.caretaker import DatabaseCaretaker, set_up
from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.events import EventKind, Reporter, StackEvent, ignore, one_at_a_time
from docgrid_cli.local.home import holder, locked, prepare
from docgrid_cli.local.keepers import RunningWorker
from docgrid_cli.local.maintenance import WorkerLedger
from docgrid_cli.local.objectstore import remove_sockets
from docgrid_cli.local.ports import LOOPBACK
from docgrid_cli.local.process import Launch, kill_tree, wait_until_ended
from docgrid_cli.local.profile import BUCKET, Profile
from docgrid_cli.local.supervisor import Supervisor
from docgrid_core.database import Database
from docgrid_core.jobs import StopReason
from docgrid_core.settings import (
    ChunkingSettings,
    DatabaseSettings,
    LogSettings,
    MaintenanceSettings,
    ParsingSettings,
    StorageSettings,
    WorkerSettings,
    load,
)
from docgrid_pipeline.objects import ObjectStore

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LEFTOVER_LIMIT = 10.0  # seconds that each of a killed supervisor's processes has to end by itself
_GRACE_MARGIN = 5.0  # seconds that a worker may take beyond its own grace period
_DOWN_LIMIT = 120.0  # seconds for another process to stop its stack


class LocalStack:
    """One local stack: `start` brings it up, `stop` takes it down; each is called once."""

    def __init__(self, home: Path, *, workers: int, report: Reporter = ignore) -> None:
        """Take the stack of the folder `home`; `report` is called from several threads, one at a time."""
        self._home = home.absolute()
        self._worker_count = workers
        self._report = one_at_a_time(report)
        self._supervisor: Supervisor | None = None
        self._resources = contextlib.ExitStack()

    def start(self) -> Profile:
        """Bring everything up and return how to reach it; workers run, but may still be registering.

        Raises `SettingsError` before anything is started, `LocalStackError`, also when the stack runs already,
        and what the database or the object store refuses. After an error nothing is left running.
        """
        worker, maintenance = load(WorkerSettings), load(MaintenanceSettings)
        for section in (ChunkingSettings, ParsingSettings, LogSettings):
            load(section)  # the workers' own: a wrong one must not show only in their logs
        try:
            return self._start(worker, maintenance)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop workers, which finish or give back their jobs, then maintenance, then the servers."""
        self._resources.close()

    def hurry(self) -> None:
        """Shorten a stop: have the workers give back the jobs that they are still working on."""
        if self._supervisor is not None:
            self._supervisor.hurry()

    def workers(self) -> list[RunningWorker]:
        """Return the worker processes that run at this moment."""
        return self._supervisor.workers() if self._supervisor else []

    def _start(self, worker: WorkerSettings, maintenance: MaintenanceSettings) -> Profile:
        prepare(self._home)
        self._resources.enter_context(locked(self._home))
        # 1. What an earlier supervisor left, so that nothing else works on the same files.
        ended = {left.pod_uid for left in _end_leftovers(self._home, self._report)}
        ledger = WorkerLedger(self._home / "workers.json")
        # 2. The servers, side by side. The database is closed after the supervisor has stopped.
        database = self._resources.enter_context(contextlib.ExitStack())
        supervisor = self._supervisor = Supervisor(ledger=ledger, report=self._report)
        self._resources.callback(supervisor.stop)
        servers = build_servers(self._home, earlier=profile.read(self._home))
        postgres = supervisor.start_server(servers.postgres)
        others = [supervisor.start_server(servers.objects), supervisor.start_server(servers.model)]
        # 3. What lives in them.
        postgres.wait_until_ready()
        reach = servers.profile()
        profile.write(self._home, reach)
        db = database.enter_context(contextlib.closing(_set_up_database(reach)))
        for server in others:
            server.wait_until_ready()
        _make_bucket(reach)
        # 4. Maintenance, which learns of the workers that are gone, then workers.
        supervisor.start_maintenance(
            DatabaseCaretaker(db, maintenance, worker), interval=maintenance.interval.total_seconds()
        )
        for pod_uid in ledger.entries():
            # A worker that we have asked to end is no crash. Of the others nobody knows: they count as one.
            supervisor.worker_ended(pod_uid, StopReason.STOPPED if pod_uid in ended else StopReason.ERROR)
        self._start_workers(supervisor, reach, grace=worker.shutdown_grace_period.total_seconds())
        return reach

    def _start_workers(self, supervisor: Supervisor, reach: Profile, *, grace: float) -> None:
        def launch(name: str, pod_uid: str) -> Launch:
            return worker_launch(
                self._home, name=name, pod_uid=pod_uid, settings=reach.settings(), environment=os.environ
            )

        (self._home / "workers").mkdir(exist_ok=True)
        supervisor.start_workers(self._worker_count, launch=launch, grace=grace + _GRACE_MARGIN)


@contextlib.contextmanager
def running(stack: LocalStack) -> Iterator[Profile]:
    """Bring a stack up for a `with` block in the main thread, and take it down after it.

    The first SIGINT, SIGTERM or SIGHUP raises `KeyboardInterrupt`, in the block or in the bring-up; further ones
    only make the workers hurry, because a stop that is broken off would leave processes running.
    """

    def interrupt(_number: int, _frame: object) -> None:
        for number in _STOP_SIGNALS:
            signal.signal(number, lambda *_: stack.hurry())
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in _STOP_SIGNALS}
    try:
        yield stack.start()
    finally:
        stack.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)


def down(home: Path, *, report: Reporter = ignore) -> bool:
    """End the stack of `home`, whoever runs it or left it behind; tell whether anything had to be ended."""
    home = home.absolute()
    if not home.exists():
        return False
    supervisor = holder(home)
    if supervisor is not None and (process := supervisor.find()) is not None:
        report(StackEvent(EventKind.STOPPING, "stack", "the stack is asked to stop", pid=process.pid))
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
            if wait_until_ended([process], limit=_DOWN_LIMIT):
                kill_tree(process.pid)
    with locked(home, patience=5.0):
        ended = _end_leftovers(home, report)
    return supervisor is not None or bool(ended)


def _end_leftovers(home: Path, report: Reporter) -> list[leftovers.Leftover]:
    ended = leftovers.end(home, limit=_LEFTOVER_LIMIT)
    with contextlib.suppress(LocalStackError):  # of a damaged profile, which `up` tells of
        if (earlier := profile.read(home)) is not None:
            remove_sockets(earlier.s3_port)
    if ended:
        text = f"{len(ended)} process(es) that a killed supervisor had left running were ended"
        report(StackEvent(EventKind.STOPPED, "stack", text))
    return ended


def _set_up_database(reach: Profile) -> Database:
    settings = load(DatabaseSettings, url=SecretStr(reach.database_url))
    db = Database(settings, application_name="docgrid-supervisor", pool_size=2)
    with contextlib.ExitStack() as on_error:
        on_error.callback(db.close)
        set_up(settings, db)
        on_error.pop_all()
    return db


def _make_bucket(reach: Profile) -> None:
    settings = load(
        StorageSettings,
        endpoint=f"{LOOPBACK}:{reach.s3_port}",
        secure=False,
        access_key=SecretStr(reach.s3_access_key),
        secret_key=SecretStr(reach.s3_secret_key),
        bucket=BUCKET,
    )
    with contextlib.closing(ObjectStore(settings)) as store:
        store.ensure_bucket()
