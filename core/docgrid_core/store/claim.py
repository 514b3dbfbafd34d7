"""Claiming jobs: one statement, one round trip, its own transaction.

The worker's row is read, not locked; a claim that races with its worker's end is taken back by recovery. The
order is exact among ready, unlocked rows: priority DESC, created_at ASC, id ASC.
"""

from collections.abc import Collection
from datetime import timedelta

from sqlalchemy import text

from docgrid_core.database import Database, Transaction, transactional
from docgrid_core.errors import BadParameter, WorkerFenced, WorkerNotFound
from docgrid_core.jobs import JobId, ModelId, WorkerId
from docgrid_core.records import Claim, ClaimAnswer, ClaimToken
from docgrid_core.store.transitions import Release, release_jobs
from docgrid_core.store.workers import READ_CLOCK, RegisteredWorker

MAX_CLAIMS = 1000
PROMOTION_BATCH = 500

# A worker that may not claim has no model in `worker`, so the queue is not touched for it. `suspect` is the
# second key of the ready index: no job is marked as one before crash isolation exists.
CLAIM = text(
    """
    WITH worker AS MATERIALIZED (
      SELECT w.id, live.is_live, CASE WHEN live.is_live THEN w.embedding_model_id END AS model_id
      FROM worker_nodes w
      CROSS JOIN LATERAL (
        SELECT w.status IN ('ACTIVE', 'IDLE')
           AND w.last_heartbeat_at > clock_timestamp() - w.dead_threshold AS is_live
      ) AS live
      WHERE w.id = :worker_id AND w.instance_id = :instance_id
    ), ready AS MATERIALIZED (
      SELECT id FROM embedding_jobs
      WHERE status = 'PENDING' AND next_retry_at IS NULL AND NOT suspect
        AND embedding_model_id = (SELECT model_id FROM worker)
      ORDER BY priority DESC, created_at, id
      LIMIT :limit
      FOR NO KEY UPDATE SKIP LOCKED
    ), clock AS MATERIALIZED (
      SELECT clock_timestamp() AS now, count(*) FROM ready
    ), claimed AS (
      UPDATE embedding_jobs j
      SET status = 'PROCESSING', locked_by_worker_id = :worker_id, claim_token = gen_random_uuid(),
          locked_at = clock.now, lock_expires_at = clock.now + :lease_duration,
          started_at = coalesce(j.started_at, clock.now), updated_at = clock.now
      FROM clock
      WHERE j.id = ANY (ARRAY(SELECT id FROM ready))
      RETURNING j.id, j.claim_token, j.document_version_id, j.embedding_model_id, j.locked_at, j.lock_expires_at,
                j.priority, j.created_at
    ), event AS (
      INSERT INTO indexing_events (embedding_job_id, event_type, from_status, to_status, metadata, occurred_at)
      SELECT id, 'LOCKED', 'PENDING', 'PROCESSING',
             jsonb_build_object('worker_id', CAST(:worker_id AS bigint)), locked_at
      FROM claimed
    )
    SELECT worker.is_live, claimed.id, claimed.claim_token, claimed.document_version_id,
           claimed.embedding_model_id, claimed.created_at, claimed.locked_at, claimed.lock_expires_at,
           (SELECT greatest(next_retry_at - clock_timestamp(), interval '0') FROM embedding_jobs
            WHERE status = 'PENDING' AND next_retry_at IS NOT NULL AND embedding_model_id = worker.model_id
            ORDER BY next_retry_at LIMIT 1)
    FROM worker LEFT JOIN claimed ON true
    ORDER BY claimed.priority DESC, claimed.created_at, claimed.id
    """
)

# One range of the delayed index for each model, oldest due first. A due job stays due, so the clock may be
# read before the locks.
PROMOTE = text(
    """
    WITH due AS MATERIALIZED (
      SELECT j.id
      FROM embedding_models m
      CROSS JOIN LATERAL (
        SELECT id FROM embedding_jobs
        WHERE status = 'PENDING' AND next_retry_at IS NOT NULL AND embedding_model_id = m.id
          AND next_retry_at <= statement_timestamp()
        ORDER BY next_retry_at
        LIMIT :limit
        FOR NO KEY UPDATE SKIP LOCKED
      ) AS j
    )
    UPDATE embedding_jobs
    SET next_retry_at = NULL, updated_at = clock_timestamp()
    WHERE id = ANY (ARRAY(SELECT id FROM due))
    RETURNING embedding_model_id
    """
)

LOCK_UNKNOWN = text(
    """
    SELECT id FROM embedding_jobs
    WHERE status = 'PROCESSING' AND locked_by_worker_id = :worker_id
      AND NOT claim_token = ANY (CAST(:known AS uuid[]))
    ORDER BY id
    FOR NO KEY UPDATE
    """
)


def claim(db: Database, worker: RegisteredWorker, *, limit: int, lease_duration: timedelta) -> ClaimAnswer:
    """Claim up to `limit` ready jobs of the worker's model, each with a token of its own.

    An empty queue writes nothing. Raises `WorkerNotFound`, `WorkerFenced`, and what `Database.run_statement`
    raises: after any failure the caller may own jobs that it does not know (`release_unknown`).
    """
    if not 0 <= limit <= MAX_CLAIMS:
        raise BadParameter(f"a claim takes 0 to {MAX_CLAIMS} jobs, not {limit}")
    if limit == 0:
        return ClaimAnswer((), None)
    rows = db.run_statement(
        CLAIM,
        {
            "worker_id": worker.id,
            "instance_id": worker.instance_id,
            "limit": limit,
            "lease_duration": lease_duration,
        },
    )
    if not rows:
        raise WorkerNotFound(f"there is no worker {worker.id} of this instance")
    if not rows[0][0]:
        raise WorkerFenced(f"worker {worker.id} is stopped, dead, or its heartbeat is overdue")
    claims = tuple(
        Claim(JobId(row[1]), WorkerId(worker.id), ClaimToken(row[2]), *row[3:8])
        for row in rows
        if row[1] is not None
    )
    return ClaimAnswer(claims, rows[0][8])


def promote(db: Database, *, limit: int = PROMOTION_BATCH) -> int:
    """Make delayed jobs that are due ready, at most `limit` of each model; return how many."""
    rows = db.run_statement(PROMOTE, {"limit": limit})
    for model_id in {row[0] for row in rows}:
        db.announce_ready(ModelId(model_id))
    return len(rows)


@transactional
def release_unknown(tx: Transaction, worker_id: WorkerId, known: Collection[ClaimToken]) -> list[JobId]:
    """Release every job that this worker holds in the database under a token that it does not know.

    They come from claims whose answer was lost: the commit happened, the connection died. To be called by the
    thread that claims, so that no answer is under way.
    """
    rows = tx.execute(LOCK_UNKNOWN, worker_id=worker_id, known=[token.value for token in known])
    jobs = [JobId(row[0]) for row in rows]
    if jobs:
        now = tx.execute(READ_CLOCK).scalar_one()
        release_jobs(tx, [Release(job, "the answer to the claim was lost") for job in jobs], now=now)
    return jobs
