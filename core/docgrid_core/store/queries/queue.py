"""How much is waiting, running and failed for each model, and how fast it gets done."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.jobs import ModelId
from docgrid_core.store.queries.answers import COUNT_LIMIT, Count, capped

RATE_MINUTES = 5

# Each count is a range of one index in that index's order, which also keeps the planner from any other plan.
DEPTH = text(
    """
    SELECT m.id, m.model_name, m.model_version, ready.number, delayed.number, processing.number,
           (SELECT created_at FROM embedding_jobs
            WHERE status = 'PENDING' AND next_retry_at IS NULL AND embedding_model_id = m.id
            ORDER BY suspect, priority DESC, created_at, id LIMIT 1) AS oldest_ready_at
    FROM embedding_models m
    CROSS JOIN LATERAL (
      SELECT count(*) AS number FROM (
        SELECT FROM embedding_jobs
        WHERE status = 'PENDING' AND next_retry_at IS NULL AND embedding_model_id = m.id
        ORDER BY suspect, priority DESC, created_at, id LIMIT :limit) AS rows
    ) AS ready
    CROSS JOIN LATERAL (
      SELECT count(*) AS number FROM (
        SELECT FROM embedding_jobs
        WHERE status = 'PENDING' AND next_retry_at IS NOT NULL AND embedding_model_id = m.id
        ORDER BY next_retry_at LIMIT :limit) AS rows
    ) AS delayed
    CROSS JOIN LATERAL (
      SELECT count(*) AS number FROM (
        SELECT FROM embedding_jobs
        WHERE status = 'PROCESSING' AND embedding_model_id = m.id
        ORDER BY lock_expires_at LIMIT :limit) AS rows
    ) AS processing
    ORDER BY m.id
    """
)

# No index of the FAILED and the INDEXED jobs begins with the model: the newest of all models are looked at.
FAILED = text(
    """
    SELECT embedding_model_id, count(*), (sum(count(*)) OVER ())::bigint
    FROM (SELECT embedding_model_id FROM embedding_jobs WHERE status = 'FAILED'
          ORDER BY failed_at DESC LIMIT :limit) AS newest
    GROUP BY embedding_model_id
    """
)

# When more were indexed in the last minutes than are counted, the rate is that of the time which they took.
INDEXED = text(
    """
    SELECT embedding_model_id, count(*),
           CASE WHEN sum(count(*)) OVER () < :limit THEN :minutes * 60.0
                ELSE extract(epoch FROM clock_timestamp() - min(min(completed_at)) OVER ()) END AS seconds
    FROM (SELECT embedding_model_id, completed_at FROM embedding_jobs
          WHERE status = 'INDEXED' AND completed_at > clock_timestamp() - make_interval(mins => :minutes)
          ORDER BY completed_at DESC LIMIT :limit) AS newest
    GROUP BY embedding_model_id
    """
)


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The queue of one model. `oldest_ready_at` is when the job that runs next was created."""

    model_id: ModelId
    model: str
    model_version: str
    ready: Count
    delayed: Count
    processing: Count
    failed: Count
    oldest_ready_at: datetime | None
    indexed_per_minute: float


@transactional
def queue_depth(tx: Transaction) -> list[QueueDepth]:
    """Return the queue of every model; see `queue_depth_in`."""
    return queue_depth_in(tx)


def queue_depth_in(tx: Transaction) -> list[QueueDepth]:
    """Return the queue of every model, in the order in which they were added, within a transaction.

    The rate is that of the last 5 minutes, over all models' newest 10,000 jobs at most.
    """
    limit = COUNT_LIMIT + 1
    failed = {row[0]: Count(row[1], row[2] > COUNT_LIMIT) for row in tx.execute(FAILED, limit=limit)}
    rates = {
        row[0]: 60 * row[1] / max(float(row[2]), 0.001)
        for row in tx.execute(INDEXED, limit=limit, minutes=RATE_MINUTES)
    }
    return [
        QueueDepth(
            model_id=row[0],
            model=row[1],
            model_version=row[2],
            ready=capped(row[3]),
            delayed=capped(row[4]),
            processing=capped(row[5]),
            failed=failed.get(row[0], Count(0)),
            oldest_ready_at=row[6],
            indexed_per_minute=round(rates.get(row[0], 0.0), 1),
        )
        for row in tx.execute(DEPTH, limit=limit)
    ]
