"""Worker rows: registration, heartbeat, and the ends that are final."""

import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import text

from docgrid_core.database import Database
from docgrid_core.errors import BadParameter, ModelNotFound, ModelNotSearchable
from docgrid_core.jobs import PLANNED_ENDS, CircuitState, StopReason, WorkerId
from docgrid_core.records import EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import claim, models, recovery, workers
from docgrid_core.store.workers import RegisteredWorker
from docgrid_core.testing import factories
from support import races, tables

AN_HOUR = timedelta(hours=1)


def watched_long(db: Database) -> list[WorkerId]:
    """Mark the overdue as a process would that has watched for an hour."""
    return overdue(db, workers.read_clock(db) - AN_HOUR)


def overdue(db: Database, watched_since: datetime) -> list[WorkerId]:
    return [worker.id for worker in workers.mark_overdue(db, watched_since=watched_since)]


def status(db: Database, worker: RegisteredWorker) -> tuple[str, str | None]:
    row = tables.worker(db, worker.id)
    return row.status, row.stop_reason


def test_a_registered_worker_is_active_with_its_own_dead_threshold(db: Database) -> None:
    worker = factories.register_worker(db, dead_threshold=timedelta(seconds=7))

    row = tables.worker(db, worker.id)
    assert (row.status, row.dead_threshold) == ("ACTIVE", timedelta(seconds=7))
    assert row.started_at == row.last_heartbeat_at
    assert (row.instance_id, row.embedding_model_id) == (worker.instance_id, worker.model.id)


def test_registering_again_after_a_lost_answer_is_the_same_row(db: Database) -> None:
    identity = factories.identity(pod_uid="pod")

    assert workers.register(db, identity) == workers.register(db, identity)
    assert tables.value(db, "SELECT count(*) FROM worker_nodes") == 1


def test_a_worker_needs_a_model(db: Database) -> None:
    with pytest.raises(ModelNotFound):
        workers.register(db, replace(factories.identity(), model="unknown"))
    tables.change(db, "UPDATE embedding_models SET is_searchable = false")
    with pytest.raises(ModelNotSearchable):
        workers.register(db, factories.identity())
    assert tables.value(db, "SELECT count(*) FROM worker_nodes") == 0


def test_a_worker_takes_the_version_of_its_model_that_it_is_told(db: Database, model: EmbeddingModel) -> None:
    second = models.add(db, provider="builtin", name=model.name, version="2", dimension=8, config={})

    def served(version: str, *, name: str = model.name) -> EmbeddingModel:
        return workers.register(db, replace(factories.identity(), model=name, model_version=version)).model

    assert [served(version) for version in ("1", "2")] == [model, second]
    assert served("") == model, "of several the active one"
    models.activate(db, model.name, "2")
    assert served("").id == served("", name="").id == second.id
    with pytest.raises(ModelNotFound, match="no version 3"):
        served("3")
    tables.change(db, "UPDATE embedding_models SET is_searchable = false")
    with pytest.raises(BadParameter, match="several embedding models are called"):
        served("")
    with pytest.raises(ModelNotSearchable):
        served("", name="")


def test_a_restarted_container_ends_the_older_rows_of_its_pod_and_no_others(db: Database) -> None:
    old, other, bare = (factories.register_worker(db, pod_uid=uid) for uid in ("pod", "other", ""))

    new, bare_too = (factories.register_worker(db, pod_uid=uid) for uid in ("pod", ""))

    assert status(db, old) == ("DEAD", "Restarted")
    assert [status(db, worker)[0] for worker in (other, bare, new, bare_too)] == ["ACTIVE"] * 4


def test_a_new_process_under_a_dead_ones_name_does_not_get_its_jobs(db: Database) -> None:
    """Case 8: identity is the instance, not the name; the dead one's claims are recovered."""
    execution = factories.run(db, worker=factories.register_worker(db, pod_uid="pod"))
    successor = factories.register_worker(db, pod_uid="pod")

    assert claim.release_unknown(db, successor.id, []) == []
    assert recovery.recover_batch(db, limit=10, policy=RetryPolicy()) == recovery.RecoveryReport(retried=1)
    assert factories.claim_one(db, successor).job_id == execution.claim.job_id


@pytest.mark.parametrize(("running", "expected"), [(0, "IDLE"), (3, "ACTIVE")])
def test_a_heartbeat_says_whether_the_worker_is_busy(db: Database, running: int, expected: str) -> None:
    worker = factories.register_worker(db)
    tables.silence(db, worker.id)

    now = workers.heartbeat(db, worker, running_jobs=running, circuit=CircuitState.OPEN)

    row = tables.worker(db, worker.id)
    assert (row.status, row.running_jobs, row.circuit) == (expected, running, "OPEN")
    assert row.last_heartbeat_at == now


@pytest.mark.parametrize("end", [StopReason.STOPPED, StopReason.ERROR])
def test_an_ended_worker_stays_ended_whatever_it_calls(db: Database, end: StopReason) -> None:
    worker = factories.register_worker(db, pod_uid="pod")
    if end is StopReason.STOPPED:
        assert workers.stop(db, worker)
    else:
        assert workers.mark_pod_ended(db, pod_uid="pod", reason=end) == [worker.id]
    before = tables.dump(db)

    assert workers.heartbeat(db, worker, running_jobs=1) is None
    assert not workers.stop(db, worker)
    assert workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.EVICTED) == []
    tables.silence(db, worker.id)
    assert watched_long(db) == []
    tables.change(db, "UPDATE worker_nodes SET last_heartbeat_at = last_heartbeat_at + interval '1 hour'")
    assert tables.dump(db) == before


def test_another_instance_can_neither_beat_nor_stop_for_a_worker(db: Database) -> None:
    worker = factories.register_worker(db)
    imposter = RegisteredWorker(worker.id, uuid.uuid4(), worker.model)
    before = tables.dump(db)

    assert workers.heartbeat(db, imposter, running_jobs=1) is None
    assert not workers.stop(db, imposter)
    assert tables.dump(db) == before


def test_stopping_is_the_last_write_and_leaves_no_running_job(db: Database) -> None:
    worker = factories.register_worker(db)
    workers.heartbeat(db, worker, running_jobs=2)

    assert workers.stop(db, worker)

    row = tables.worker(db, worker.id)
    assert (row.status, row.stop_reason, row.running_jobs) == ("STOPPED", "Stopped", 0)


@pytest.mark.parametrize("reason", StopReason)
def test_who_knows_that_a_process_has_ended_says_why(db: Database, reason: StopReason) -> None:
    worker, other = (factories.register_worker(db, pod_uid=uid) for uid in ("pod", ""))

    assert workers.mark_pod_ended(db, pod_uid="pod", reason=reason) == [worker.id]
    assert workers.mark_pod_ended(db, pod_uid="", reason=reason) == [], "no pod is no pod's"

    planned = reason in PLANNED_ENDS and reason is not StopReason.NODE_LOST
    assert status(db, worker) == ("STOPPED" if planned else "DEAD", reason.value)
    assert status(db, other)[0] == "ACTIVE"


@pytest.mark.parametrize("reason", StopReason)
def test_of_a_restarted_pod_only_the_process_that_ended_is_marked(db: Database, reason: StopReason) -> None:
    """The pod's next process runs by then under the same pod uid: the row is named, not the pod."""
    first, second = (factories.register_worker(db) for _ in range(2))
    tables.change(db, "UPDATE worker_nodes SET pod_uid = 'pod'")

    assert workers.mark_ended(db, first.id, reason)
    before = tables.dump(db)
    assert not workers.mark_ended(db, first.id, StopReason.EVICTED), "whoever is second changes nothing"
    assert not workers.mark_ended(db, WorkerId(second.id + 1), reason), "nor does who names nobody"

    assert tables.dump(db) == before
    planned = reason in PLANNED_ENDS and reason is not StopReason.NODE_LOST
    assert status(db, first) == ("STOPPED" if planned else "DEAD", reason.value)
    assert status(db, second)[0] == "ACTIVE"


def test_an_observer_sees_the_live_workers_of_its_pools_and_the_time_before_it_lists_pods(
    db: Database,
) -> None:
    identity = replace(factories.identity(pod_uid="pod-uid", pool_uid="ours"), pod_name="pod", node_name="n")
    busy = workers.register(db, replace(identity, namespace="ns", indexing_worker="pool"))
    idle, ended, _foreign, _local = (
        factories.register_worker(db, pool_uid=uid) for uid in ("ours too", "ours", "theirs", "")
    )
    workers.heartbeat(db, idle, running_jobs=0)
    workers.mark_ended(db, ended.id, StopReason.DELETED)
    before = workers.read_clock(db)

    now, live = workers.live_workers(db, ["ours", "ours too", "no workers"])

    assert before <= now <= workers.read_clock(db)
    assert [worker.id for worker in live] == [busy.id, idle.id]
    assert live[0] == workers.LiveWorker(
        busy.id,
        identity.instance_id,
        "ns",
        "pod",
        "pod-uid",
        "n",
        "pool",
        "ours",
        tables.worker(db, busy.id).started_at,
    )


def test_an_observer_without_live_workers_sees_the_time(db: Database) -> None:
    factories.register_worker(db)
    for pools in ([], ["ours"]):
        now, live = workers.live_workers(db, pools)
        assert live == []
        assert now <= workers.read_clock(db)


def test_an_overdue_worker_is_dead_by_its_own_threshold(db: Database) -> None:
    patient = factories.register_worker(db, dead_threshold=timedelta(hours=2))
    overdue = factories.register_worker(db)
    lively = factories.register_worker(db)
    for worker in (patient, overdue):
        tables.silence(db, worker.id)

    assert watched_long(db) == [overdue.id]
    assert status(db, overdue) == ("DEAD", "HeartbeatOverdue")
    assert [status(db, worker)[0] for worker in (patient, lively)] == ["ACTIVE", "ACTIVE"]


def test_who_marks_a_worker_overdue_learns_which_it_was(db: Database) -> None:
    identity = replace(factories.identity(pool_uid="pool"), namespace="ns", pod_name="pod")
    pooled, local = workers.register(db, identity), factories.register_worker(db)
    for worker in (pooled, local):
        tables.silence(db, worker.id)

    marked = workers.mark_overdue(db, watched_since=workers.read_clock(db) - AN_HOUR)

    assert sorted(marked, key=lambda worker: worker.id) == [
        workers.OverdueWorker(pooled.id, "worker", "ns", "pod", "pool"),
        workers.OverdueWorker(local.id, "worker", "", "", None),
    ]


def test_a_worker_that_never_beat_is_overdue_by_its_start(db: Database) -> None:
    worker = factories.register_worker(db)
    tables.change(
        db, "UPDATE worker_nodes SET last_heartbeat_at = NULL, started_at = started_at - interval '1 hour'"
    )

    assert watched_long(db) == [worker.id]


def test_nobody_is_overdue_for_an_observer_that_has_not_watched_for_a_whole_threshold(db: Database) -> None:
    worker = factories.register_worker(db)
    tables.silence(db, worker.id)

    assert overdue(db, workers.read_clock(db) - timedelta(seconds=29)) == []
    assert overdue(db, workers.read_clock(db) - timedelta(seconds=31)) == [worker.id]


def test_a_heartbeat_that_arrives_while_the_overdue_are_marked_saves_its_worker(
    db: Database, database_settings: DatabaseSettings
) -> None:
    worker = factories.register_worker(db)
    tables.silence(db, worker.id)
    with races.connected(database_settings, application_name="marker") as marker:
        with db._engine.begin() as heart:
            parameters = {"worker_id": worker.id, "instance_id": worker.instance_id, "running_jobs": 0}
            heart.execute(workers.HEARTBEAT, parameters | {"circuit": "CLOSED"})
            marking = races.Call(partial(watched_long, marker))
            races.wait_until(lambda: races.waits_for_lock(db, "marker"))
        assert marking.result() == []
    assert status(db, worker)[0] == "IDLE"


def test_bulk_marks_and_heartbeats_in_opposite_order_deadlock_nobody(
    db: Database, database_settings: DatabaseSettings
) -> None:
    """Case 13: whoever marks many workers at once, in whatever order they lie, every call comes back whole."""
    crowd = [factories.register_worker(db) for _ in range(30)]
    # Rewritten in the opposite order, so that a scan of the table meets them last to first.
    for worker in reversed(crowd):
        tables.silence(db, worker.id)
    tables.change(db, "UPDATE worker_nodes SET pod_uid = 'pod-of-many'")
    with races.connected(database_settings) as other:
        outcomes = races.together(
            [
                partial(watched_long, db),
                partial(workers.mark_pod_ended, other, pod_uid="pod-of-many", reason=StopReason.NODE_LOST),
                partial(watched_long, other),
            ]
        )

    assert races.faults(outcomes) == []
    assert sum(len(outcome) for outcome in outcomes if isinstance(outcome, list)) == len(crowd)


def test_sessions_of_a_worker_that_did_not_stop_by_itself_are_cut(
    db: Database, database_settings: DatabaseSettings
) -> None:
    crashed, stopped, alive = (factories.register_worker(db, pod_uid=uid) for uid in ("pod", "", ""))
    names = [f"{workers.APPLICATION_PREFIX}{worker.instance_id}" for worker in (crashed, stopped, alive)]
    with (
        races.connected(database_settings, application_name=names[0]) as of_crashed,
        races.connected(database_settings, application_name=names[1]) as of_stopped,
        races.connected(database_settings, application_name=names[2]) as of_alive,
    ):
        for pool in (of_crashed, of_stopped, of_alive):
            workers.read_clock(pool)
        workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.ERROR)
        workers.stop(db, stopped)

        assert workers.terminate_sessions_of_ended(db) == 1

        races.wait_until(lambda: not races.sessions(db, names[0]))
        assert [len(races.sessions(db, name)) for name in names[1:]] == [1, 1]


@pytest.mark.parametrize("reason", sorted(set(StopReason) - {StopReason.STOPPED}))
def test_whatever_ended_a_worker_but_its_own_stop_cuts_its_sessions(
    db: Database, database_settings: DatabaseSettings, reason: StopReason
) -> None:
    worker = factories.register_worker(db)
    name = f"{workers.APPLICATION_PREFIX}{worker.instance_id}"
    with races.connected(database_settings, application_name=name) as frozen:
        workers.read_clock(frozen)
        assert workers.terminate_sessions_of_ended(db) == 0
        workers.mark_ended(db, worker.id, reason)
        assert workers.terminate_sessions_of_ended(db) == 1


def test_a_session_that_a_fenced_process_opens_later_is_left_alone(
    db: Database, database_settings: DatabaseSettings
) -> None:
    """It is live code that will be refused and end; cutting it again and again would only hide why."""
    worker = factories.register_worker(db, pod_uid="pod")
    workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.ERROR)
    name = f"{workers.APPLICATION_PREFIX}{worker.instance_id}"
    with races.connected(database_settings, application_name=name) as late:
        assert workers.heartbeat(late, worker, running_jobs=0) is None
        assert workers.terminate_sessions_of_ended(db) == 0


def test_heartbeats_touch_no_index(db: Database) -> None:
    worker = factories.register_worker(db)
    with db._engine.begin() as connection:
        for running in range(20):
            parameters = {
                "worker_id": worker.id,
                "instance_id": worker.instance_id,
                "running_jobs": running % 2,
            }
            connection.execute(workers.HEARTBEAT, parameters | {"circuit": "CLOSED"})
        updates = connection.execute(
            text(
                "SELECT pg_stat_get_xact_tuples_updated(c.oid), pg_stat_get_xact_tuples_hot_updated(c.oid)"
                " FROM pg_class c WHERE relname = 'worker_nodes'"
            )
        ).one()
    assert updates == (20, 20)
