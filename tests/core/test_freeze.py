"""A client frozen at any statement, in the middle of a COPY, or in a long statement holds up nobody else's job."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial

import psutil
import pytest

from docgrid_core.database import Database
from docgrid_core.errors import DatabaseUnavailable, RefusedError
from docgrid_core.jobs import JobId, StopReason
from docgrid_core.maintenance import Maintenance, Watch
from docgrid_core.records import NewChunk
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings, MaintenanceSettings
from docgrid_core.store import claim, control, leases, parse, workers
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Stage
from docgrid_core.testing.invariants import violations
from support import frozen_worker, races, tables
from support.races import Frozen
from support.transactions import OTHER_CALLS, OWNER_CALLS, POD, Call, ProtocolCall

AGAIN = 10.0
"""Seconds within which a frozen one's job must be free: generous, for a machine that does other things too."""

MOST_STATEMENTS = 40
IN_ONE_STATEMENT = {"renew"}
OWNER_TRANSACTIONS = [call for call in OWNER_CALLS if call.name not in IN_ONE_STATEMENT]
BY_OTHERS = [
    call
    for call in OTHER_CALLS
    if call.name in {"supersede", "delete", "cancel", "recover a batch", "recover one", "quarantine"}
]


@pytest.fixture
def maintenance(db: Database) -> Maintenance:
    return Maintenance(db, MaintenanceSettings(), RetryPolicy(), Watch(longest_gap=timedelta(hours=1)))


def require_others_go_on(db: Database, maintenance: Maintenance) -> None:
    """Run a tick of maintenance, and index another document from end to end."""
    started = time.monotonic()
    maintenance.run_once()
    other = factories.register(db, priority=1000)
    factories.run(db, Stage.COMPLETED, document=other)
    assert time.monotonic() - started < AGAIN


def require_claimed_again(db: Database, maintenance: Maintenance, job_id: JobId) -> None:
    """Run ticks until another worker gets the job."""
    worker = factories.register_worker(db)

    def claimed() -> bool:
        maintenance.run_once()
        claims = claim.claim(db, worker, limit=100, lease_duration=LEASE).claims
        return job_id in {item.job_id for item in claims}

    races.wait_until(claimed, limit=AGAIN)


def require_refused(db: Database, act: Call, victim: Database) -> None:
    """Make the call again from a new connection: it is refused, or finds nothing of its own."""
    before = tables.dump(db)
    with suppress(RefusedError):
        act(victim)
    assert tables.dump(db) == before


def owner(db: Database) -> tuple[JobId, str]:
    """Return the job of the worker in `POD` and the name of that worker's sessions."""
    (row,) = tables.fetch(
        db,
        "SELECT j.id, w.instance_id FROM worker_nodes w JOIN embedding_jobs j ON j.locked_by_worker_id = w.id"
        " WHERE w.pod_uid = :pod AND j.status = 'PROCESSING'",
        pod=POD,
    )
    return row.id, f"{workers.APPLICATION_PREFIX}{row.instance_id}"


def clear_queue(db: Database) -> None:
    for row in tables.fetch(db, "SELECT id FROM embedding_jobs WHERE status IN ('PENDING', 'PROCESSING')"):
        control.cancel(db, row.id, reason="", by="test")


@pytest.mark.parametrize("call", OWNER_TRANSACTIONS, ids=[call.name for call in OWNER_TRANSACTIONS])
def test_an_owner_frozen_in_front_of_any_statement_loses_its_job_and_nothing_else(
    db: Database, database_settings: DatabaseSettings, maintenance: Maintenance, call: ProtocolCall
) -> None:
    for at in range(1, MOST_STATEMENTS):
        act = call.arrange(db)
        job_id, name = owner(db)
        with races.connected(database_settings, application_name=name) as victim:
            with Frozen(victim, partial(act, victim), before=at) as frozen:
                if not frozen.reached:
                    break
                require_others_go_on(db, maintenance)
                workers.mark_pod_ended(db, pod_uid=POD, reason=StopReason.ERROR)
                require_claimed_again(db, maintenance, job_id)
                before = tables.dump(db)
            assert isinstance(frozen.call.error(), DatabaseUnavailable)
            assert tables.dump(db) == before
            require_refused(db, act, victim)
        clear_queue(db)
    assert at > 2
    assert violations(db) == []


@pytest.mark.parametrize("call", BY_OTHERS, ids=[call.name for call in BY_OTHERS])
def test_whoever_is_frozen_with_locks_and_changes_loses_them_at_the_idle_limit(
    db: Database, database_settings: DatabaseSettings, maintenance: Maintenance, call: ProtocolCall
) -> None:
    """These sessions are no worker's: the limit on an idle transaction alone ends them."""
    act = call.arrange(db)
    before = tables.dump(db)
    limit = timedelta(seconds=1)
    with races.connected(database_settings, idle_in_transaction_timeout=limit) as victim:
        with Frozen(victim, partial(act, victim), before=last_statement(call)) as frozen:
            assert frozen.reached
            assert not every_row_is_free(db)
            races.wait_until(partial(every_row_is_free, db), limit=AGAIN)
            assert tables.dump(db) == before
            require_others_go_on(db, maintenance)
        assert isinstance(frozen.call.error(), DatabaseUnavailable)
    assert violations(db) == []


def last_statement(call: ProtocolCall) -> str:
    """Return a part of the statement that comes when every lock is held and other things are changed already."""
    in_bulk = {"recover a batch": "'RETRY'", "recover one": "'RETRY'", "quarantine": "'FAILED'"}
    return in_bulk.get(call.name, "INSERT INTO indexing_events")


def every_row_is_free(db: Database) -> bool:
    free = tables.value(
        db, "SELECT count(*) FROM (SELECT id FROM embedding_jobs FOR NO KEY UPDATE SKIP LOCKED) AS free"
    )
    return bool(free == tables.value(db, "SELECT count(*) FROM embedding_jobs"))


class Stalling(list[NewChunk]):
    """Chunks of which the first is sent, and the others not before `go_on` is set."""

    def __init__(self, chunks: list[NewChunk]) -> None:
        super().__init__(chunks)
        self.sent = threading.Event()
        self.go_on = threading.Event()

    def __iter__(self) -> Iterator[NewChunk]:
        for chunk in super().__iter__():
            yield chunk
            self.sent.set()
            self.go_on.wait(races.LIMIT)


def test_a_client_frozen_in_the_middle_of_a_copy_holds_no_lock_of_a_job(
    db: Database, database_settings: DatabaseSettings, maintenance: Maintenance
) -> None:
    worker = factories.register_worker(db, pod_uid=POD)
    run = factories.run(db, Stage.PARSE_PREPARED, worker=worker)
    _, name = owner(db)
    chunks = Stalling(factories.chunks())
    limit = timedelta(milliseconds=100)
    with races.connected(
        database_settings, application_name=name, idle_in_transaction_timeout=limit, statement_timeout=limit
    ) as victim:
        act = partial(parse.store, victim, run.own, chunks, lease_duration=LEASE)
        storing = races.Call(act)
        assert chunks.sent.wait(races.LIMIT)
        try:
            require_others_go_on(db, maintenance)
            assert leases.renew(db, worker, [run.claim], lease_duration=LEASE) == {
                run.claim.job_id: leases.Renewal.RENEWED
            }
            workers.mark_pod_ended(db, pod_uid=POD, reason=StopReason.HEARTBEAT_OVERDUE)
            require_claimed_again(db, maintenance, run.claim.job_id)
            races.wait_until(lambda: not races.sessions(db, name), limit=AGAIN)
            before = tables.dump(db)
        finally:
            chunks.go_on.set()
        assert isinstance(storing.error(), DatabaseUnavailable)
        assert tables.dump(db) == before
        require_refused(db, lambda other: parse.store(other, run.own, chunks, lease_duration=LEASE), victim)


@contextmanager
def worker_process(settings: DatabaseSettings, mode: str) -> Iterator[subprocess.Popen[str]]:
    """Run a worker of the pod `POD` as a process of its own; see `support.frozen_worker`."""
    environment = os.environ | {"DOCGRID_DATABASE_URL": settings.url.get_secret_value()}
    command = [sys.executable, str(frozen_worker.__file__), POD, mode]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def slow_inserts(db: Database) -> None:
    """Let every insert of chunks take ten minutes on the server."""
    tables.change(
        db,
        """
        CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN PERFORM pg_sleep(600); RETURN NEW; END $$;
        CREATE TRIGGER dawdle BEFORE INSERT ON document_chunks FOR EACH ROW EXECUTE FUNCTION dawdle()
        """,
    )


def is_dawdling(db: Database) -> bool:
    statement = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    return bool(tables.fetch(db, statement))


def is_stopped(process: subprocess.Popen[str]) -> bool:
    return bool(psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)


def test_a_process_stopped_under_its_locks_is_refused_when_it_goes_on(
    db: Database, database_settings: DatabaseSettings, maintenance: Maintenance
) -> None:
    """SIGSTOP of the whole process, as a node that hangs, and SIGCONT once its job is another's."""
    factories.register(db)
    with worker_process(database_settings, "stop") as process:
        races.wait_until(lambda: is_stopped(process))
        job_id, _ = owner(db)
        require_others_go_on(db, maintenance)
        workers.mark_pod_ended(db, pod_uid=POD, reason=StopReason.HEARTBEAT_OVERDUE)
        require_claimed_again(db, maintenance, job_id)
        before = tables.dump(db)

        process.send_signal(signal.SIGCONT)

        said, _ = process.communicate(timeout=races.LIMIT)
        assert said.split() == ["DatabaseUnavailable", "JobOwnershipLost"]
    assert tables.dump(db) == before
    assert violations(db) == []


def test_a_process_stopped_in_a_long_statement_is_refused_when_it_goes_on(
    db: Database, database_settings: DatabaseSettings, maintenance: Maintenance
) -> None:
    factories.register(db)
    slow_inserts(db)
    with worker_process(database_settings, "wait") as process:
        races.wait_until(partial(is_dawdling, db))
        process.send_signal(signal.SIGSTOP)
        job_id, _ = owner(db)
        maintenance.run_once()
        assert factories.register(db).outcome == "created"
        workers.mark_pod_ended(db, pod_uid=POD, reason=StopReason.HEARTBEAT_OVERDUE)
        require_claimed_again(db, maintenance, job_id)
        before = tables.dump(db)

        process.send_signal(signal.SIGCONT)

        said, _ = process.communicate(timeout=races.LIMIT)
        assert said.split() == ["DatabaseUnavailable", "JobOwnershipLost"]
    assert tables.dump(db) == before


def test_a_process_killed_in_a_long_statement_frees_its_locks_by_itself(
    db: Database, database_settings: DatabaseSettings
) -> None:
    """Nobody marks it and no maintenance runs: the server notices that its client is gone."""
    factories.register(db)
    slow_inserts(db)
    with worker_process(database_settings, "wait") as process:
        races.wait_until(partial(is_dawdling, db))
        assert not every_row_is_free(db)
        process.kill()
        races.wait_until(partial(every_row_is_free, db), limit=AGAIN)
    assert tables.value(db, "SELECT count(*) FROM document_chunks") == 0
