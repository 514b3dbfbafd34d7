"""What the status of pools counts: their workers, and the queue of their model."""

from datetime import timedelta

import pytest

from docgrid_core.database import Database
from docgrid_core.jobs import FailureType, StopReason
from docgrid_core.records import EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import fail, models, workers
from docgrid_core.store.queries import Count, PoolKey, WorkerCounts, pool_counts
from docgrid_core.testing import factories
from support import races, tables

POLICY = RetryPolicy()
BROKEN = fail.Report(FailureType.DOCUMENT_CONTENT_INVALID, "not a document")
AWAY = fail.Report(FailureType.STORAGE_UNAVAILABLE, "away")
OURS = PoolKey("ours", "tiny")


def test_the_workers_of_a_pool_are_counted_by_state_its_ended_ones_for_an_hour(db: Database) -> None:
    for running in (1, 1, 0):
        worker = factories.register_worker(db, pool_uid="ours")
        workers.heartbeat(db, worker, running_jobs=running)
    for ago, reason in ((59, "Drained"), (61, "Drained"), (59, "Error"), (59, "NodeLost"), (61, "Error")):
        ended = factories.register_worker(db, pool_uid="ours")
        workers.mark_ended(db, ended.id, StopReason(reason))
        tables.change(
            db,
            "UPDATE worker_nodes SET stopped_at = stopped_at - :ago WHERE id = :id",
            ago=timedelta(minutes=ago),
            id=ended.id,
        )
    factories.register_worker(db, pool_uid="theirs")
    factories.register_worker(db)

    counts = pool_counts(db, [OURS, PoolKey("none", "tiny")])

    assert {uid: pool.workers for uid, pool in counts.items()} == {
        "ours": WorkerCounts(active=2, idle=1, stopped=1, dead=2),
        "none": WorkerCounts(),
    }


def test_pools_of_one_model_have_one_queue(db: Database, model: EmbeddingModel) -> None:
    for report in (BROKEN, AWAY):
        fail.fail(db, factories.run(db).own, report, policy=POLICY)
    factories.run(db)
    factories.register(db)
    urgent = factories.register(db, priority=5)
    other = models.add(db, provider="builtin", name="other", version="1", dimension=8, config={})

    counts = pool_counts(db, [OURS, PoolKey("too", "tiny", "1"), PoolKey("others", "other")])

    queue = counts["ours"].queue
    assert queue is not None
    assert queue == counts["too"].queue
    assert (queue.ready, queue.delayed, queue.processing, queue.failed) == (
        Count(2),
        Count(1),
        Count(1),
        Count(1),
    )
    assert queue.oldest_ready_at == tables.job(db, urgent.job_id).created_at, "that of the job that runs next"
    assert (counts["ours"].model, counts["others"].model) == (model, other)
    nothing = counts["others"].queue
    assert nothing is not None
    assert (nothing.ready, nothing.failed, nothing.oldest_ready_at) == (Count(0), Count(0), None)


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (PoolKey("ours", "unknown"), "there is no embedding model unknown"),
        (PoolKey("ours", "tiny", "2"), "there is no version 2 of embedding model tiny"),
        (PoolKey("ours", "twice"), "several embedding models are called twice: builtin 1, builtin 2"),
    ],
)
def test_a_pool_without_a_model_is_told_why(db: Database, key: PoolKey, problem: str) -> None:
    for version in ("1", "2"):
        models.add(db, provider="builtin", name="twice", version=version, dimension=8, config={})

    counts = pool_counts(db, [key])["ours"]

    assert (counts.model, counts.queue, counts.model_problem) == (None, None, problem)


def test_whether_the_model_is_active_can_be_seen(db: Database) -> None:
    def is_active() -> bool:
        model = pool_counts(db, [OURS])["ours"].model
        return model is not None and model.is_active and model.is_searchable

    assert is_active()
    models.add(db, provider="builtin", name="next", version="1", dimension=8, config={})
    models.activate(db, "next")
    assert not is_active()


def test_five_hundred_pools_cost_no_more_statements_than_one(
    db: Database, database_settings: DatabaseSettings
) -> None:
    tables.change(
        db,
        """
        INSERT INTO worker_nodes (worker_name, instance_id, host_name, ip_address, namespace, pod_name, pod_uid,
                                  node_name, indexing_worker, indexing_worker_uid, max_concurrency, dead_threshold,
                                  version, status, started_at)
        SELECT '', gen_random_uuid(), '', '', '', '', n, '', '', 'pool ' || n % 500, 1, interval '30 s', '', 'IDLE',
               now()
        FROM generate_series(1, 2000) AS n
        """,
    )
    statements: list[str] = []
    with races.connected(database_settings) as other:
        other.listen_to_statements(statements.append)
        pool_counts(other, [OURS])
        for_one = len(statements)
        counts = pool_counts(other, [PoolKey(f"pool {number}", "tiny") for number in range(500)])

    assert len(statements) == 2 * for_one <= 14
    assert {pool.workers for pool in counts.values()} == {WorkerCounts(idle=4)}
    assert len(counts) == 500


def test_no_pools_have_no_counts(db: Database) -> None:
    assert pool_counts(db, []) == {}
