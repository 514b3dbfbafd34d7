"""Promises of the small parts: leases and their renewal, the heartbeat, why a process ends, what it logs."""

import io
import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
import structlog
from pydantic import SecretStr

from docgrid_core.database import Database
from docgrid_core.errors import DatabaseUnavailable, JobOwnershipLost
from docgrid_core.logconfig import configure_logging
from docgrid_core.maintenance import Watch
from docgrid_core.settings import DatabaseSettings, LogSettings
from docgrid_core.store import attempts
from docgrid_core.testing.factories import claim_one, register, register_worker
from docgrid_worker.__main__ import _watch_threads
from docgrid_worker.errorlog import ErrorLog
from docgrid_worker.execution import persist
from docgrid_worker.heartbeat import HeartbeatThread
from docgrid_worker.leases import BUSY_INTERVAL, LeaseBook, LeaseLost, LeaseThread
from docgrid_worker.lifecycle import ExitCode, Lifecycle
from support import tables
from support.races import Call

LEASE = timedelta(minutes=5)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """Yield what the worker logs."""
    stream = io.StringIO()
    configure_logging(LogSettings(), stream=stream)
    yield stream
    structlog.reset_defaults()


def renewal(db: Database, worker: object, book: LeaseBook) -> LeaseThread:
    """Return a renewal thread that is not started."""
    return LeaseThread(
        db,
        worker,  # type: ignore[arg-type]
        book,
        interval=timedelta(minutes=1),
        lifecycle=Lifecycle(),
        errors=ErrorLog(),
    )


def beat(db: Database, worker: object, lifecycle: Lifecycle) -> HeartbeatThread:
    """Return a heartbeat thread that is not started."""
    return HeartbeatThread(
        db,
        worker,  # type: ignore[arg-type]
        interval=timedelta(seconds=10),
        running_jobs=lambda: 2,
        lifecycle=lifecycle,
        watch=Watch(longest_gap=timedelta(minutes=1)),
        errors=ErrorLog(),
    )


def test_a_renewed_lease_is_believed_from_the_moment_of_asking_a_lost_one_no_more(db: Database) -> None:
    register(db), register(db)
    worker = register_worker(db)
    book = LeaseBook(LEASE)
    past = time.monotonic() - 200
    kept, lost = (book.enter(claim_one(db, worker), asked_at=past) for _ in range(2))
    tables.expire_lease(db, lost.claim.job_id)
    asked_at = time.monotonic()
    assert renewal(db, worker, book).renew_once() == 60
    assert asked_at + 300 <= kept.deadline <= time.monotonic() + 300
    assert kept.is_held
    assert not lost.is_held
    with pytest.raises(LeaseLost):
        lost.check()
    assert book.held() == [kept]


def test_a_busy_lease_is_neither_extended_nor_lost_and_asked_for_again_within_5_seconds(db: Database) -> None:
    register(db)
    worker = register_worker(db)
    book = LeaseBook(LEASE)
    lease = book.enter(claim_one(db, worker), asked_at=time.monotonic() - 200)
    before = lease.deadline
    with db._engine.begin() as connection:
        connection.exec_driver_sql("SELECT FROM embedding_jobs FOR NO KEY UPDATE")
        assert renewal(db, worker, book).renew_once() <= 5
    assert lease.is_held
    assert lease.deadline == before


def test_a_lease_that_our_own_store_keeps_busy_is_believed_until_it_can_be_renewed(db: Database) -> None:
    register(db)
    worker = register_worker(db)
    book = LeaseBook(LEASE)
    lease = book.enter(claim_one(db, worker), asked_at=time.monotonic() - 299)
    with db._engine.begin() as connection:
        connection.exec_driver_sql("SELECT FROM embedding_jobs FOR NO KEY UPDATE")
        renewal(db, worker, book).renew_once()
    assert lease.deadline > time.monotonic() + BUSY_INTERVAL


def test_a_lease_is_no_longer_believed_when_its_last_known_expiry_has_passed(db: Database) -> None:
    register(db)
    lease = LeaseBook(LEASE).enter(claim_one(db, register_worker(db)), asked_at=time.monotonic() - 301)
    with pytest.raises(LeaseLost):
        lease.check()


def test_a_lease_whose_execution_ended_while_it_was_renewed_is_not_reported_lost(
    db: Database, log: io.StringIO
) -> None:
    register(db)
    worker = register_worker(db)
    book = LeaseBook(LEASE)
    lease = book.enter(claim_one(db, worker), asked_at=time.monotonic())
    book.free(lease)
    book.apply({}, [lease], asked_at=time.monotonic())
    assert log.getvalue() == ""


def test_freeing_an_old_lease_of_a_job_leaves_the_new_one(db: Database) -> None:
    register(db)
    worker = register_worker(db)
    book = LeaseBook(LEASE)
    claimed = claim_one(db, worker)
    old = book.enter(claimed, asked_at=time.monotonic())
    new = book.enter(claimed, asked_at=time.monotonic())
    book.free(old)
    book.free(old)
    assert book.held() == [new]


def test_a_transaction_is_repeated_while_the_database_is_away_and_the_lease_is_held(db: Database) -> None:
    register(db)
    worker = register_worker(db)
    lease = LeaseBook(LEASE).enter(claim_one(db, worker), asked_at=time.monotonic())
    answers: list[Exception | int] = [DatabaseUnavailable(), DatabaseUnavailable(), 7]

    def transaction() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert persist(lease, transaction) == 7


def test_a_transaction_that_waits_for_the_database_ends_with_its_lease(db: Database) -> None:
    register(db)
    lease = LeaseBook(LEASE).enter(claim_one(db, register_worker(db)), asked_at=time.monotonic())
    tried = threading.Event()

    def away() -> None:
        tried.set()
        raise DatabaseUnavailable

    call = Call(lambda: persist(lease, away))
    assert tried.wait(10)
    lease.lose()
    assert isinstance(call.error(), LeaseLost)


def test_the_losers_start_is_refused(db: Database) -> None:
    register(db)
    loser, winner = register_worker(db), register_worker(db)
    lost = claim_one(db, loser)
    tables.change(
        db,
        "UPDATE embedding_jobs SET locked_by_worker_id = :id, claim_token = gen_random_uuid()",
        id=winner.id,
    )
    lease = LeaseBook(LEASE).enter(lost, asked_at=time.monotonic())
    with pytest.raises(JobOwnershipLost):
        persist(lease, lambda: attempts.start(db, lost))


def test_a_heartbeat_tells_how_many_jobs_run(db: Database) -> None:
    worker = register_worker(db)
    assert beat(db, worker, Lifecycle()).beat_once() == 10
    assert tables.worker(db, worker.id).running_jobs == 2


def test_a_heartbeat_that_finds_no_live_row_silences_the_process(db: Database) -> None:
    worker = register_worker(db)
    tables.change(
        db, "UPDATE worker_nodes SET status = 'DEAD', stop_reason = 'Error', stopped_at = clock_timestamp()"
    )
    lifecycle = Lifecycle()
    beat(db, worker, lifecycle).beat_once()
    assert (lifecycle.is_silent(), lifecycle.exit_code) == (True, ExitCode.FENCED)
    assert lifecycle.ending.is_set()


def test_an_unreachable_database_fences_nobody(db: Database, database_settings: DatabaseSettings) -> None:
    worker = register_worker(db)
    url = SecretStr(db._engine.url.set(port=1).render_as_string(hide_password=False))
    nowhere = Database(database_settings.model_copy(update={"url": url}), application_name="docgrid-tests")
    lifecycle = Lifecycle()
    heart = beat(nowhere, worker, lifecycle)
    assert heart.beat_once() <= 1
    assert not heart.delivered
    assert not lifecycle.ending.is_set()
    nowhere.close()


def test_the_first_reason_to_end_stays() -> None:
    lifecycle = Lifecycle()
    lifecycle.on_signal()
    lifecycle.drain(ExitCode.ERROR)
    assert lifecycle.exit_code is ExitCode.DRAINED
    assert not lifecycle.hurried.is_set()


def test_a_signal_to_a_process_that_drains_for_an_error_does_not_hurry_it_a_second_one_does() -> None:
    lifecycle = Lifecycle()
    lifecycle.drain(ExitCode.ERROR)
    lifecycle.on_signal()
    assert not lifecycle.hurried.is_set()
    lifecycle.on_signal()
    assert lifecycle.hurried.is_set()
    assert lifecycle.exit_code is ExitCode.ERROR


def test_a_process_that_is_fenced_while_it_drains_ends_as_fenced() -> None:
    lifecycle = Lifecycle()
    lifecycle.on_signal()
    lifecycle.go_silent(ExitCode.FENCED)
    lifecycle.go_silent(ExitCode.ERROR)
    assert (lifecycle.exit_code, lifecycle.hurried.is_set()) == (ExitCode.FENCED, True)


def test_a_thread_that_dies_ends_the_process_and_its_error_is_not_shown(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    lifecycle = Lifecycle()
    _watch_threads(lifecycle)

    def die() -> None:
        raise ValueError("the text of a document")

    thread = threading.Thread(target=die, name="poller")
    thread.start()
    thread.join()
    assert (lifecycle.is_silent(), lifecycle.exit_code) == (True, ExitCode.ERROR)
    line = json.loads(log.getvalue())
    assert (line["event"], line["thread"], line["error_type"]) == ("a thread died", "poller", "ValueError")
    assert "document" not in log.getvalue() + "".join(capsys.readouterr())


def test_repeated_errors_are_one_line_a_second_that_counts_the_others(
    log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    errors = ErrorLog()
    for _ in range(5):
        errors.warning("away")
    now = 101.0
    errors.warning("still away")
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(line["event"], line["held_back"]) for line in lines] == [("away", 0), ("still away", 4)]
