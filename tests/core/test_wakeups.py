"""Wake-ups: who sends them, how often, and what a lost one costs."""

import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from queue import SimpleQueue

import psycopg
import pytest
from pydantic import SecretStr

from docgrid_core import wakeups
from docgrid_core.database import Database
from docgrid_core.errors import DatabaseUnavailable
from docgrid_core.jobs import FailureType, ModelId, StopReason
from docgrid_core.records import EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import claim, control, documents, fail, recovery, release, workers
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE
from docgrid_core.wakeups import Listener, Notifier
from support import races, tables

POLICY = RetryPolicy()
ONE, TWO = ModelId(1), ModelId(2)


@pytest.fixture
def listener(db: Database) -> Iterator[Listener]:
    listener = db.listener()
    assert listener is not None
    yield listener
    listener.close()


def register(db: Database) -> None:
    factories.register(db)


def do_release(db: Database) -> None:
    release.release(db, factories.run(db).claim, reason="shutdown")


def do_release_unknown(db: Database) -> None:
    claim.release_unknown(db, factories.run(db).worker.id, [])


def do_recover_expired(db: Database) -> None:
    tables.expire_lease(db, factories.run(db).claim.job_id)
    recovery.recover_batch(db, limit=1, policy=POLICY)


def do_recover_released(db: Database) -> None:
    factories.run(db, worker=factories.register_worker(db, pod_uid="pod"))
    workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.EVICTED)
    recovery.recover_batch(db, limit=1, policy=POLICY)


def do_promote(db: Database) -> None:
    factories.register(db)
    tables.change(db, "UPDATE embedding_jobs SET next_retry_at = clock_timestamp()")
    claim.promote(db)


def do_retry(db: Database) -> None:
    run = factories.run(db)
    report = fail.Report(FailureType.DOCUMENT_CONTENT_INVALID, "bad")
    fail.fail(db, run.own, report, policy=POLICY)
    control.retry(db, run.claim.job_id, reason="", by="test")


def do_supersede(db: Database) -> None:
    factories.register(db, "a", "old")
    documents.register(db, factories.source("a", "new"), supersede=True)


MAKE_READY = [
    register,
    do_release,
    do_release_unknown,
    do_recover_expired,
    do_recover_released,
    do_promote,
    do_retry,
    do_supersede,
]


@pytest.mark.parametrize("act", MAKE_READY, ids=[act.__name__ for act in MAKE_READY])
def test_every_transition_that_makes_a_job_ready_wakes_the_workers_of_its_model(
    database_settings: DatabaseSettings, model: EmbeddingModel, act: Callable[[Database], None]
) -> None:
    with races.connected(database_settings) as db:
        db._notifier = counting = Counting()
        act(db)
    assert counting.last_models == {model.id}


class Counting(Notifier):
    """Keeps what the last transaction announced, and sends nothing."""

    def __init__(self) -> None:
        super().__init__(lambda _model: None)
        self.last_models: set[ModelId] = set()
        self.urgent = False

    def announce(self, models: dict[ModelId, bool]) -> None:  # type: ignore[override]
        """Note what is announced."""
        self.last_models = set(models)
        self.urgent = any(models.values())


@pytest.mark.parametrize(
    ("act", "urgent"), [(do_recover_expired, True), (do_recover_released, True), (do_release, False)]
)
def test_recoverys_wake_up_is_never_held_back(
    database_settings: DatabaseSettings, act: Callable[[Database], None], urgent: bool
) -> None:
    with races.connected(database_settings) as db:
        db._notifier = counting = Counting()
        act(db)
    assert counting.urgent == urgent


def test_a_job_that_is_delayed_or_ended_wakes_nobody(database_settings: DatabaseSettings) -> None:
    with races.connected(database_settings) as db:
        runs = [factories.run(db) for _ in range(3)]
        db._notifier = counting = Counting()
        failure = fail.Report(FailureType.WORKER_INTERNAL_ERROR, "it broke")
        fail.fail(db, runs[0].own, failure, policy=POLICY)
        assert counting.last_models == set()
        release.defer(
            db, runs[1].own, factories.DEFERRAL, wait=LEASE, max_deferral=timedelta(days=1), policy=POLICY
        )
        assert counting.last_models == set()
        control.cancel(db, runs[2].claim.job_id, reason="", by="test")
        assert counting.last_models == set()


def test_a_registration_that_is_rolled_back_wakes_nobody(database_settings: DatabaseSettings) -> None:
    def break_off(statement: str) -> None:
        if "INSERT INTO indexing_events" in statement:
            raise RuntimeError("planned")

    sent: list[ModelId] = []
    with races.connected(database_settings) as db:
        db._notifier = Notifier(sent.append)
        db.listen_to_statements(break_off)
        with pytest.raises(RuntimeError, match="planned"):
            register(db)
    assert sent == []


def test_a_worker_that_listens_is_woken_by_a_registration(
    db: Database, listener: Listener, model: EmbeddingModel
) -> None:
    assert listener.wait(model.id, races.LIMIT), "after connecting: what was announced before is not known"
    waiting = races.Call(partial(listener.wait, model.id, races.LIMIT))
    factories.register(db)
    assert waiting.result()


def test_a_wake_up_that_came_while_nobody_waited_is_not_lost(
    db: Database, listener: Listener, model: EmbeddingModel
) -> None:
    listener.wait(model.id, 0)
    factories.register(db)
    db._notifier.close()
    assert listener.wait(model.id, races.LIMIT)
    assert not listener.wait(model.id, 0.01)


def test_the_wake_ups_of_other_models_wake_nobody(
    db: Database, listener: Listener, model: EmbeddingModel
) -> None:
    listener.wait(model.id, 0)
    db._send_wakeup(ModelId(model.id + 1))
    assert not listener.wait(model.id, 0.2)
    db._send_wakeup(ModelId(model.id + 1))
    db._send_wakeup(model.id)
    assert listener.wait(model.id, races.LIMIT)


def test_a_listener_whose_connection_is_lost_says_so_and_connects_again(
    db: Database, database_settings: DatabaseSettings, model: EmbeddingModel
) -> None:
    """Case 12, the core's part."""
    name = f"listener-{uuid.uuid4()}"
    with races.connected(database_settings, application_name=name) as pool:
        listener = pool.listener()
        assert listener is not None
        listener.wait(model.id, 0)
        waiting = races.Call(partial(listener.wait, model.id, races.LIMIT))
        tables.fetch(
            db,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name",
            name=name,
        )
        assert isinstance(waiting.error(), DatabaseUnavailable)
        assert listener.wait(model.id, races.LIMIT), "connected again"
        factories.register(db)
        assert listener.wait(model.id, races.LIMIT)
        listener.close()
        listener.close()


def test_a_listener_that_can_not_connect_says_so() -> None:
    listener = Listener(lambda: psycopg.connect("postgresql://nobody@127.0.0.1:1/nothing", connect_timeout=1))
    with pytest.raises(DatabaseUnavailable):
        listener.wait(ONE, 1)


def test_nobody_listens_behind_a_pooler() -> None:
    settings = DatabaseSettings(url=SecretStr("postgresql://u@127.0.0.1:1/d"), pooler=True)
    with races.connected(settings) as db:
        assert db.listener() is None


class Sent:
    """A queue of what was sent and when; the first sending may fail."""

    def __init__(self, *, failures: int = 0) -> None:
        self._queue: SimpleQueue[tuple[ModelId, float]] = SimpleQueue()
        self._failures = failures

    def __call__(self, model: ModelId) -> None:
        """Take a wake-up."""
        self._queue.put((model, time.monotonic()))
        if self._failures:
            self._failures -= 1
            raise DatabaseUnavailable

    def next(self) -> tuple[ModelId, float]:
        """Wait for the next one."""
        return self._queue.get(timeout=races.LIMIT)

    def is_empty(self) -> bool:
        """Tell whether nothing more was sent."""
        return self._queue.empty()


def test_wake_ups_of_a_queue_are_at_most_one_in_an_interval_and_none_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wakeups, "INTERVAL", 0.3)
    sent = Sent()
    notifier = Notifier(sent)
    notifier.announce({ONE: False})
    _, first = sent.next()
    for _ in range(50):
        notifier.announce({ONE: False})
    _, second = sent.next()
    assert second - first >= 0.3, "the suppressed ones are sent once, when the interval has passed"
    notifier.close()
    assert sent.is_empty()


def test_an_urgent_wake_up_and_that_of_another_queue_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "INTERVAL", 3600.0)
    sent = Sent()
    notifier = Notifier(sent)
    notifier.announce({ONE: False})
    assert sent.next()[0] == ONE
    notifier.announce({ONE: False})
    notifier.announce({TWO: False})
    assert sent.next()[0] == TWO
    notifier.announce({ONE: True})
    assert sent.next()[0] == ONE
    assert sent.is_empty()
    notifier.close()


def test_what_is_held_back_is_sent_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "INTERVAL", 3600.0)
    sent = Sent()
    notifier = Notifier(sent)
    notifier.announce({})
    notifier.announce({ONE: False})
    sent.next()
    notifier.announce({ONE: False})
    notifier.close()
    assert sent.next()[0] == ONE
    notifier.close()


def test_a_notifier_that_was_never_used_has_no_thread_to_end() -> None:
    notifier = Notifier(Sent())
    notifier.close()
    notifier.announce({ONE: False})
    assert notifier._thread is None


def test_a_wake_up_that_can_not_be_sent_stops_no_other() -> None:
    sent = Sent(failures=1)
    notifier = Notifier(sent)
    notifier.announce({ONE: False})
    sent.next()
    notifier.announce({TWO: False})
    assert sent.next()[0] == TWO
    notifier.close()
