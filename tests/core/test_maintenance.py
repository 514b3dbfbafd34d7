"""Maintenance: one tick, the right to call others overdue, and the loop that hosts it."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import structlog
from pydantic import SecretStr
from structlog.testing import capture_logs

from docgrid_core.database import Database
from docgrid_core.errors import DatabaseUnavailable
from docgrid_core.jobs import StopReason
from docgrid_core.maintenance import Maintenance, MaintenanceLoop, Retention, TickReport, Watch
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings, MaintenanceSettings
from docgrid_core.store import workers
from docgrid_core.store.prune import PruneReport
from docgrid_core.store.recovery import RecoveryReport
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Stage
from support import races, tables

START = datetime(2030, 1, 1, tzinfo=UTC)
A_MOMENT = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
NOTHING = TickReport((), RecoveryReport(), 0)


@pytest.fixture(autouse=True)
def plain_logs() -> Iterator[None]:
    """Undo what other tests configured: cached loggers can not be captured."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def maintenance_of(db: Database, watch: Watch | None = None, *, batch: int = 500) -> Maintenance:
    watch = watch or Watch(longest_gap=HOUR)
    return Maintenance(db, MaintenanceSettings(batch=batch), RetryPolicy(), watch)


def watching_for(db: Database, time: timedelta) -> Watch:
    """Return the watch of a process that has reached the database for so long."""
    watch = Watch(longest_gap=10 * HOUR)
    watch.reached(workers.read_clock(db) - time)
    return watch


def test_a_tick_ends_overdue_workers_takes_their_jobs_back_and_promotes(db: Database) -> None:
    run = factories.run(db, Stage.CHUNKS_STORED)
    tables.silence(db, run.worker.id)
    delayed = factories.register(db)
    tables.change(
        db,
        "UPDATE embedding_jobs SET next_retry_at = clock_timestamp() WHERE id = :id",
        id=delayed.job_id,
    )
    maintenance = maintenance_of(db, watching_for(db, HOUR))

    with capture_logs() as logs:
        report = maintenance.run_once()
        assert ([worker.id for worker in report.ended], report.recovered, report.promoted) == (
            [run.worker.id],
            RecoveryReport(retried=1),
            1,
        )
        assert maintenance.run_once() == NOTHING

    assert tables.worker(db, run.worker.id).stop_reason == "HeartbeatOverdue"
    assert tables.job(db, run.claim.job_id).status == "PENDING"
    assert tables.job(db, delayed.job_id).next_retry_at is None
    (line,) = logs
    assert line["event"] == "workers or jobs recovered"
    assert (line["workers_ended"], line["retried"]) == (1, 1)


def test_an_observer_that_has_just_started_ends_nobody(db: Database) -> None:
    """After an outage every heartbeat is old: a fleet is not killed for it."""
    worker = factories.register_worker(db)
    tables.silence(db, worker.id)
    watch = Watch(longest_gap=HOUR)
    assert maintenance_of(db, watch).run_once() == NOTHING
    watch.lost()
    assert maintenance_of(db, watch).run_once() == NOTHING
    assert tables.worker(db, worker.id).status == "ACTIVE"


def test_a_gap_begins_the_watch_anew() -> None:
    watch = Watch(longest_gap=10 * SECOND)
    assert watch.reached(START) == START
    assert watch.reached(START + 10 * SECOND) == START, "exactly as far apart as allowed"
    assert watch.reached(START + 21 * SECOND) == START + 21 * SECOND, "what happened meanwhile was not seen"
    watch.lost()
    assert watch.reached(START + 22 * SECOND) == START + 22 * SECOND
    assert watch.reached(START + 23 * SECOND) == START + 22 * SECOND


def test_answers_that_arrive_out_of_order_are_no_gap() -> None:
    watch = Watch(longest_gap=10 * SECOND)
    watch.reached(START)
    watch.reached(START + 9 * SECOND)
    assert watch.reached(START + 3 * SECOND) == START
    assert watch.reached(START + 18 * SECOND) == START


def test_a_tick_that_can_not_reach_the_database_is_a_gap(db: Database) -> None:
    worker = factories.register_worker(db)
    tables.silence(db, worker.id)
    watch = watching_for(db, HOUR)
    nowhere = DatabaseSettings(url=SecretStr("postgresql://nobody@127.0.0.1:1/nothing"))
    with races.connected(nowhere) as unreachable, pytest.raises(DatabaseUnavailable):
        maintenance_of(unreachable, watch).run_once()
    assert maintenance_of(db, watch).run_once() == NOTHING


def test_a_tick_cuts_the_sessions_of_workers_that_ended(
    db: Database, database_settings: DatabaseSettings
) -> None:
    worker = factories.register_worker(db, pod_uid="pod")
    name = f"{workers.APPLICATION_PREFIX}{worker.instance_id}"
    with races.connected(database_settings, application_name=name) as frozen:
        workers.read_clock(frozen)
        workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.NODE_LOST)
        maintenance_of(db).run_once()
        races.wait_until(lambda: not races.sessions(db, name))


def test_a_tick_recovers_everything_in_batches_of_the_set_size(db: Database) -> None:
    for _ in range(5):
        tables.expire_lease(db, factories.run(db).claim.job_id)
    assert maintenance_of(db, batch=2).run_once().recovered == RecoveryReport(retried=5)


def test_any_number_of_hosts_may_tick_at_once(db: Database, database_settings: DatabaseSettings) -> None:
    runs = [factories.run(db) for _ in range(6)]
    for run in runs:
        tables.silence(db, run.worker.id)
    watch = watching_for(db, HOUR)
    with races.connected(database_settings) as other:
        hosts = [maintenance_of(pool, watch) for pool in (db, other, db, other)]
        outcomes = races.together([host.run_once for host in hosts])
        assert races.faults(outcomes) == []
        hosts[0].run_once()
    assert sum(len(outcome.ended) for outcome in outcomes if isinstance(outcome, TickReport)) == 6
    for run in runs:
        assert tables.job(db, run.claim.job_id).retry_count == 1


def test_retention_waits_until_it_is_due(db: Database) -> None:
    factories.index(db)
    assert Retention(db, MaintenanceSettings(keep_indexed=A_MOMENT)).run_once() == PruneReport()


def test_retention_deletes_what_is_too_old_and_nothing_younger(db: Database) -> None:
    factories.index(db)
    young = Retention(db, MaintenanceSettings(retention_interval=A_MOMENT))
    old = Retention(db, MaintenanceSettings(retention_interval=A_MOMENT, keep_indexed=A_MOMENT))
    races.wait_until(lambda: old.run_once().jobs == 1)
    assert young.run_once() == PruneReport()


def test_retention_stops_after_its_turn_and_goes_on_at_the_next_call(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Retention, "TURN", 0.0)
    retention = Retention(db, MaintenanceSettings(retention_interval=timedelta(seconds=1)))
    steps = iter([PruneReport(jobs=1), PruneReport(jobs=2)])
    monkeypatch.setattr("docgrid_core.store.prune.batches", lambda *_: steps)
    races.wait_until(lambda: retention.run_once().jobs == 1)
    assert retention.run_once().jobs == 2


class Ticking:
    """A loop in a thread, whose ticks are signalled."""

    def __init__(self, db: Database, *, interval: timedelta, jitter: float = 0) -> None:
        self.ticks = threading.Semaphore(0)
        self.pruned = threading.Semaphore(0)
        maintenance, retention = maintenance_of(db), Retention(db, MaintenanceSettings())
        self._count(maintenance, self.ticks)
        self._count(retention, self.pruned)
        self.loop = MaintenanceLoop(
            maintenance,
            retention,
            interval=interval,
            jitter=jitter,
        )
        self.call = races.Call(self.loop.run)

    def ticked(self) -> bool:
        """Wait for the end of the next tick."""
        return self.ticks.acquire(timeout=races.LIMIT)

    def stop(self) -> None:
        """Stop the loop and wait for its end."""
        self.loop.stop()
        self.call.result()

    @staticmethod
    def _count(service: Maintenance | Retention, semaphore: threading.Semaphore) -> None:
        run_once = service.run_once

        def counted() -> object:
            try:
                return run_once()
            finally:
                semaphore.release()

        service.run_once = counted  # type: ignore[method-assign, assignment]


def test_the_loop_ticks_at_once_when_woken_and_ends_when_told(db: Database) -> None:
    loop = Ticking(db, interval=HOUR)
    assert loop.ticked()
    run = factories.run(db, worker=factories.register_worker(db, pod_uid="pod"))
    workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.ERROR)
    loop.loop.wake()
    assert loop.ticked()
    assert tables.job(db, run.claim.job_id).status == "PENDING"
    loop.stop()


def test_the_loop_ticks_and_prunes_again_and_again(db: Database) -> None:
    loop = Ticking(db, interval=A_MOMENT, jitter=0.5)
    assert all(loop.ticked() for _ in range(3))
    assert loop.pruned.acquire(timeout=races.LIMIT)
    loop.stop()


def test_the_loop_waits_an_outage_out_and_says_so_once(db: Database) -> None:
    def tick_in_an_outage() -> None:
        tables.change(db, "ALTER TABLE worker_nodes RENAME TO worker_nodes_gone")
        try:
            loop = Ticking(db, interval=A_MOMENT)
            assert all(loop.ticked() for _ in range(4))
        finally:
            tables.change(db, "ALTER TABLE worker_nodes_gone RENAME TO worker_nodes")
        # Back again: what is due is done, and the next outage would be told again.
        races.wait_until(partial(is_recovered, db, run.claim.job_id))
        loop.stop()

    run = factories.run(db)
    tables.expire_lease(db, run.claim.job_id)
    with capture_logs() as logs:
        tick_in_an_outage()
    failures = [line for line in logs if line["log_level"] == "warning"]
    assert [line["event"] for line in failures] == ["maintenance failed"]


def is_recovered(db: Database, job_id: int) -> bool:
    return bool(tables.value(db, "SELECT status FROM embedding_jobs WHERE id = :id", id=job_id) == "PENDING")
