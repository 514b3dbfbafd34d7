"""What the status of every pool says of its workers, its model and its queue. Called by the operator's status loop.

As many statements for 500 pools as for one: workers are counted for all of them at once, and a queue is a model's,
of which there are few.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.errors import DocGridError
from docgrid_core.records import EmbeddingModel
from docgrid_core.store.models import model_to_serve, models_in
from docgrid_core.store.queries.answers import read_snapshot
from docgrid_core.store.queries.queue import QueueDepth, queue_depth_in

ENDS_COUNTED = timedelta(hours=1)
"""How long ago a worker may have ended to be counted."""

# Worker rows are few, retention removes the ended ones: their table is read as it is.
WORKERS = text(
    """
    SELECT indexing_worker_uid,
           count(*) FILTER (WHERE status = 'ACTIVE'), count(*) FILTER (WHERE status = 'IDLE'),
           count(*) FILTER (WHERE status = 'STOPPED'), count(*) FILTER (WHERE status = 'DEAD')
    FROM worker_nodes
    WHERE stopped_at IS NULL OR stopped_at > statement_timestamp() - :ends_counted
    GROUP BY indexing_worker_uid
    """
)


@dataclass(frozen=True, slots=True)
class PoolKey:
    """A pool, by the uid of its IndexingWorker, and the embedding model whose jobs its workers take."""

    uid: str
    model: str
    model_version: str = ""


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """The workers of a pool by the status of their rows; STOPPED and DEAD are those of the last hour."""

    active: int = 0
    idle: int = 0
    stopped: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """What there is to say of a pool.

    `model` and `queue` are None when the database has no such model: `model_problem` then says what is wrong.
    """

    workers: WorkerCounts
    model: EmbeddingModel | None
    queue: QueueDepth | None
    model_problem: str = ""


@transactional
def pool_counts(tx: Transaction, pools: Sequence[PoolKey]) -> dict[str, PoolCounts]:
    """Return the counts of pools by their uid, all as of one moment."""
    read_snapshot(tx)
    workers = _count_workers(tx)
    models = models_in(tx)
    depths = {depth.model_id: depth for depth in queue_depth_in(tx)}
    counts = {}
    for pool in pools:
        model, problem = _find(models, pool)
        counts[pool.uid] = PoolCounts(
            workers.get(pool.uid, WorkerCounts()),
            model,
            None if model is None else depths[model.id],
            problem,
        )
    return counts


def _count_workers(tx: Transaction) -> dict[str, WorkerCounts]:
    rows = tx.execute(WORKERS, ends_counted=ENDS_COUNTED)
    return {row[0]: WorkerCounts(*row[1:]) for row in rows}


def _find(models: Sequence[EmbeddingModel], pool: PoolKey) -> tuple[EmbeddingModel | None, str]:
    """Return the model as the pool's workers find it at their registration, or why they find none."""
    try:
        return model_to_serve(models, pool.model, pool.model_version), ""
    except DocGridError as error:
        return None, error.message
