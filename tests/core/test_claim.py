"""Claiming: order, fences, tokens, batches, and what an empty queue costs."""

import uuid
from datetime import timedelta
from functools import partial

import pytest
from pydantic import SecretStr
from sqlalchemy import text

from docgrid_core.database import Database
from docgrid_core.errors import BadParameter, WorkerFenced, WorkerNotFound
from docgrid_core.jobs import StopReason, WorkerId
from docgrid_core.records import ClaimAnswer, ClaimToken, EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import claim, recovery, workers
from docgrid_core.store.workers import RegisteredWorker
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Stage
from support import races, tables


def take(db: Database, worker: RegisteredWorker, limit: int = 10) -> ClaimAnswer:
    return claim.claim(db, worker, limit=limit, lease_duration=LEASE)


def test_jobs_come_by_priority_then_age_then_id(db: Database) -> None:
    low, first, second, high = (factories.register(db, priority=priority) for priority in (-1, 0, 0, 7))
    twin = factories.register(db)
    tables.change(
        db,
        "UPDATE embedding_jobs SET created_at = (SELECT created_at FROM embedding_jobs WHERE id = :id)"
        " WHERE id = :twin",
        id=second.job_id,
        twin=twin.job_id,
    )
    worker = factories.register_worker(db)

    claimed = [item.job_id for item in take(db, worker, 4).claims + take(db, worker).claims]

    assert claimed == [high.job_id, first.job_id, second.job_id, twin.job_id, low.job_id]


def test_a_claim_takes_no_more_than_asked_for(db: Database) -> None:
    for _ in range(5):
        factories.register(db)
    worker = factories.register_worker(db)

    assert [len(take(db, worker, limit).claims) for limit in (2, 2, 2, 2)] == [2, 2, 1, 0]


def test_a_claimed_job_is_processing_under_a_lease_by_the_time_of_its_lock(db: Database) -> None:
    document = factories.register(db)
    worker = factories.register_worker(db)

    (claimed,) = take(db, worker).claims

    row = tables.job(db, document.job_id)
    assert (row.status, row.locked_by_worker_id, row.claim_token) == (
        "PROCESSING",
        worker.id,
        claimed.token.value,
    )
    assert (row.locked_at, row.lock_expires_at) == (claimed.locked_at, claimed.lock_expires_at)
    assert row.lock_expires_at - row.locked_at == LEASE
    assert row.started_at == row.locked_at
    assert tables.events(db, document.job_id) == ["JOB_CREATED", "LOCKED"]


def test_every_claim_has_a_token_of_its_own_even_of_the_same_job(db: Database) -> None:
    document, _ = factories.register(db), factories.register(db)
    worker = factories.register_worker(db)
    first, second = take(db, worker).claims
    started_at = tables.job(db, document.job_id).started_at
    claim.release_unknown(db, worker.id, [second.token])

    (again,) = take(db, worker).claims

    assert again.job_id == first.job_id == document.job_id
    assert len({first.token, second.token, again.token}) == 3
    assert tables.job(db, document.job_id).started_at == started_at, "started_at is that of the first claim"


def test_a_delayed_job_is_not_claimed_before_it_is_promoted(db: Database) -> None:
    document = factories.register(db)
    tables.change(db, "UPDATE embedding_jobs SET next_retry_at = clock_timestamp() - interval '1 minute'")
    worker = factories.register_worker(db)

    assert take(db, worker).claims == ()
    assert claim.promote(db) == 1
    assert [item.job_id for item in take(db, worker).claims] == [document.job_id]


def test_promotion_leaves_what_is_not_due_and_takes_the_oldest_due_first(db: Database) -> None:
    jobs = [factories.register(db).job_id for _ in range(3)]
    for job_id, minutes in zip(jobs, (-1, -5, 5), strict=True):
        tables.change(
            db,
            "UPDATE embedding_jobs SET next_retry_at = clock_timestamp() + :wait WHERE id = :id",
            wait=timedelta(minutes=minutes),
            id=job_id,
        )

    assert claim.promote(db, limit=1) == 1
    assert [tables.job(db, job_id).next_retry_at is None for job_id in jobs] == [False, True, False]
    assert (claim.promote(db), claim.promote(db)) == (1, 0)


def test_an_empty_answer_says_when_the_next_delayed_job_of_the_model_comes(db: Database) -> None:
    document, another = factories.register(db), factories.register(db)
    tables.change(
        db, "UPDATE embedding_jobs SET next_retry_at = clock_timestamp() + id * interval '1 minute'"
    )
    worker = factories.register_worker(db)

    wait = take(db, worker).next_delayed

    assert wait is not None
    assert document.job_id is not None
    assert another.job_id is not None
    assert timedelta(0) < timedelta(minutes=document.job_id) - wait < timedelta(seconds=30)
    tables.come_due(db)
    assert take(db, worker).next_delayed == timedelta(0), "one that is due already is no time away"


def test_a_worker_claims_jobs_of_its_own_model_only(db: Database) -> None:
    factories.register(db)
    worker = factories.register_worker(db)
    tables.change(db, "UPDATE worker_nodes SET embedding_model_id = NULL")

    assert take(db, worker) == ClaimAnswer((), None)


def test_an_empty_queue_has_no_next_delayed_job(db: Database) -> None:
    assert take(db, factories.register_worker(db)) == ClaimAnswer((), None)


def test_an_unknown_worker_or_instance_is_refused(db: Database) -> None:
    worker = factories.register_worker(db)
    unknown = RegisteredWorker(WorkerId(worker.id + 1), worker.instance_id, worker.model)
    imposter = RegisteredWorker(worker.id, uuid.uuid4(), worker.model)

    for stranger in (unknown, imposter):
        with pytest.raises(WorkerNotFound):
            take(db, stranger)


@pytest.mark.parametrize("end", ["stopped", "dead", "overdue", "never heard of"])
def test_a_fenced_worker_never_touches_the_queue(db: Database, end: str) -> None:
    factories.register(db)
    worker = factories.register_worker(db, pod_uid="pod")
    if end == "stopped":
        workers.stop(db, worker)
    elif end == "dead":
        workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.ERROR)
    elif end == "overdue":
        tables.silence(db, worker.id)
    else:
        tables.change(db, "UPDATE worker_nodes SET last_heartbeat_at = NULL")
    before = tables.dump(db)

    with pytest.raises(WorkerFenced):
        take(db, worker)

    assert tables.dump(db) == before


def test_a_claim_of_nothing_touches_nothing(model: EmbeddingModel) -> None:
    nowhere = DatabaseSettings(url=SecretStr("postgresql://nobody@127.0.0.1:1/nothing"))
    with races.connected(nowhere) as unreachable:
        worker = RegisteredWorker(WorkerId(1), uuid.uuid4(), model)
        assert take(unreachable, worker, limit=0) == ClaimAnswer((), None)


@pytest.mark.parametrize("limit", [-1, claim.MAX_CLAIMS + 1])
def test_a_claim_of_an_absurd_number_is_refused(db: Database, limit: int) -> None:
    with pytest.raises(BadParameter):
        take(db, factories.register_worker(db), limit)


def test_an_empty_poll_takes_no_transaction_id_and_writes_nothing(db: Database) -> None:
    factories.register(db)
    tables.change(db, "UPDATE embedding_jobs SET next_retry_at = clock_timestamp() + interval '1 hour'")
    worker = factories.register_worker(db)
    parameters = {"worker_id": worker.id, "instance_id": worker.instance_id, "limit": 5}
    before = tables.dump(db)

    with db._engine.connect() as connection:
        connection.execute(claim.CLAIM, parameters | {"lease_duration": LEASE}).all()
        assert connection.execute(text("SELECT pg_current_xact_id_if_assigned()")).scalar() is None

    assert tables.dump(db) == before


def test_concurrent_claims_never_share_a_job(db: Database, database_settings: DatabaseSettings) -> None:
    jobs = {factories.register(db).job_id for _ in range(40)}
    with races.connected(database_settings) as other:
        everyone = [(pool, factories.register_worker(db)) for pool in (db, other) for _ in range(4)]
        answers = races.together([partial(take, pool, who, 5) for pool, who in everyone])

    claimed = [item for answer in answers if isinstance(answer, ClaimAnswer) for item in answer.claims]
    assert len(claimed) == 40
    assert {item.job_id for item in claimed} == jobs
    assert len({item.token for item in claimed}) == 40
    assert tables.value(db, "SELECT count(*) FROM indexing_events WHERE event_type = 'LOCKED'") == 40


def test_a_job_whose_row_is_held_is_passed_over_without_waiting(
    db: Database, database_settings: DatabaseSettings
) -> None:
    held, free = factories.register(db, priority=1), factories.register(db)
    worker = factories.register_worker(db)
    with races.connected(database_settings) as other, other._engine.begin() as holder:
        holder.execute(
            text("SELECT FROM embedding_jobs WHERE id = :id FOR NO KEY UPDATE"), {"id": held.job_id}
        )

        assert [item.job_id for item in take(db, worker).claims] == [free.job_id]


def test_a_job_that_was_taken_while_the_claim_waited_is_not_claimed_again(
    db: Database, database_settings: DatabaseSettings
) -> None:
    """Several claimers of a queue with one job: all but one get nothing, none fails."""
    factories.register(db)
    crowd = [factories.register_worker(db) for _ in range(5)]

    answers = races.together([partial(take, db, who) for who in crowd])

    claimed = [len(answer.claims) for answer in answers if isinstance(answer, ClaimAnswer)]
    assert sorted(claimed) == [0, 0, 0, 0, 1]


def test_a_claim_that_races_with_its_workers_end_is_taken_back(
    db: Database, database_settings: DatabaseSettings
) -> None:
    document = factories.register(db)
    worker = factories.register_worker(db, pod_uid="pod")
    tables.hold_updates(db, "embedding_jobs")
    with races.connected(database_settings, application_name="claimer") as claimer:
        # 1. The claim has read its worker as live and stands in front of its update.
        with tables.holding(db):
            late = races.Call(lambda: take(claimer, worker))
            races.wait_until(lambda: races.waits_for_lock(db, "claimer"))
            # 2. The worker's end is marked, and recovery finds nothing of it yet.
            workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.ERROR)
            assert recovery.recover_batch(db, limit=10, policy=RetryPolicy()) == recovery.RecoveryReport()
        # 3. The claim goes through; the next tick takes it back.
        assert [item.job_id for item in late.result().claims] == [document.job_id]
    assert recovery.recover_batch(db, limit=10, policy=RetryPolicy()) == recovery.RecoveryReport(released=1)
    assert tables.job(db, document.job_id).status == "PENDING"
    assert tables.attempts(db, document.job_id) == []


def test_a_lost_answer_leaves_no_job_behind(db: Database) -> None:
    """Case 2, the core's part: what a worker does not know it owns goes back, without costing a retry."""
    lost, kept = factories.register(db, priority=2), factories.register(db, priority=1)
    worker, neighbour = factories.register_worker(db), factories.register_worker(db)
    factories.register(db)
    take(db, worker, 1)
    execution = factories.run(db, Stage.PARSE_PREPARED, document=kept, worker=worker)
    take(db, neighbour)

    assert claim.release_unknown(db, worker.id, [execution.claim.token]) == [lost.job_id]

    row = tables.job(db, lost.job_id)
    assert (row.status, row.retry_count, row.next_retry_at) == ("PENDING", 0, None)
    assert tables.events(db, lost.job_id) == ["JOB_CREATED", "LOCKED", "RELEASED"]
    assert tables.job(db, kept.job_id).status == "PROCESSING"
    assert claim.release_unknown(db, worker.id, [execution.claim.token]) == []
    assert tables.value(db, "SELECT count(*) FROM embedding_jobs WHERE status = 'PROCESSING'") == 2


def test_an_unknown_job_that_was_started_is_released_with_its_attempt(db: Database) -> None:
    execution = factories.run(db)

    assert claim.release_unknown(db, execution.worker.id, [ClaimToken(uuid.uuid4())]) == [
        execution.claim.job_id
    ]

    (attempt,) = tables.attempts(db, execution.claim.job_id)
    assert (attempt.status, attempt.error_code) == ("RELEASED", None)


def test_the_claim_reads_only_ready_jobs_beside_200_000_leased_ones(db: Database) -> None:
    """Case 14: leased rows, expired or not, are in no range that the claim reads."""
    worker = factories.register_worker(db)
    with db._engine.begin() as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))  # no versions needed
        connection.execute(
            text(
                """
                INSERT INTO embedding_jobs (document_version_id, embedding_model_id, status, locked_by_worker_id,
                                            locked_at, lock_expires_at, claim_token)
                SELECT n, :model, 'PROCESSING', :worker, now() - interval '30 days',
                       now() + (n - 100000) * interval '1 second', gen_random_uuid()
                FROM generate_series(-200000, -1) AS n
                """
            ),
            {"model": worker.model.id, "worker": worker.id},
        )
    tables.change(db, "ANALYZE embedding_jobs")
    for _ in range(5):
        factories.register(db)
    parameters = {"worker_id": worker.id, "instance_id": worker.instance_id, "limit": 2}

    with db._engine.connect() as connection:
        explain = text(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, SUMMARY OFF, FORMAT JSON) {claim.CLAIM.text}")
        plan = connection.execute(explain, parameters | {"lease_duration": LEASE}).scalar_one()[0]["Plan"]

    (scan,) = [node for node in nodes(plan) if node.get("Index Name") == "embedding_jobs_ready_idx"]
    assert scan["Actual Rows"] == 2
    assert scan.get("Rows Removed by Filter", 0) == 0
    assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan" and "jobs" in str(node)]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 300
    assert len(take(db, worker, 5).claims) == 5


def nodes(plan: dict[str, object]) -> list[dict[str, object]]:
    children = plan.get("Plans", [])
    assert isinstance(children, list)
    return [plan, *(node for child in children for node in nodes(child))]
