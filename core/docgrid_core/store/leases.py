"""Renewing leases: all live jobs of a worker in one statement, which waits for nobody."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from enum import StrEnum

from sqlalchemy import text

from docgrid_core.database import Database, Transaction
from docgrid_core.jobs import JobId
from docgrid_core.records import Claim
from docgrid_core.store.ownership import LockedJob
from docgrid_core.store.workers import RegisteredWorker

# `locked` skips rows that someone holds, mostly this worker's own store. Such a row counts as busy while the
# snapshot shows it PROCESSING under the wanted token; it is asked for again soon. The clock depends on the locks.
RENEW = text(
    """
    WITH wanted AS MATERIALIZED (
      SELECT * FROM unnest(CAST(:job_ids AS bigint[]), CAST(:tokens AS uuid[])) AS w (job_id, token)
    ), worker AS MATERIALIZED (
      SELECT id FROM worker_nodes
      WHERE id = :worker_id AND instance_id = :instance_id AND status IN ('ACTIVE', 'IDLE')
    ), locked AS MATERIALIZED (
      SELECT j.id FROM embedding_jobs j
      JOIN wanted ON wanted.job_id = j.id AND wanted.token = j.claim_token
      JOIN worker ON worker.id = j.locked_by_worker_id
      WHERE j.status = 'PROCESSING'
      ORDER BY j.id
      FOR NO KEY UPDATE OF j SKIP LOCKED
    ), clock AS MATERIALIZED (
      SELECT clock_timestamp() AS now, count(*) FROM locked
    ), renewed AS (
      UPDATE embedding_jobs j
      SET lock_expires_at = greatest(j.lock_expires_at, clock.now + :lease_duration), updated_at = clock.now
      FROM clock
      WHERE j.id = ANY (ARRAY(SELECT id FROM locked)) AND j.lock_expires_at > clock.now
      RETURNING j.id
    )
    SELECT wanted.job_id,
           CASE
             WHEN renewed.id IS NOT NULL THEN 'RENEWED'
             WHEN locked.id IS NULL AND EXISTS (SELECT FROM worker) AND j.status = 'PROCESSING'
              AND j.locked_by_worker_id = :worker_id AND j.claim_token = wanted.token THEN 'BUSY'
             ELSE 'LOST'
           END
    FROM wanted
    LEFT JOIN embedding_jobs j ON j.id = wanted.job_id
    LEFT JOIN locked ON locked.id = wanted.job_id
    LEFT JOIN renewed ON renewed.id = wanted.job_id
    """
)

RENEW_OWN = text(
    """
    UPDATE embedding_jobs
    SET lock_expires_at = greatest(lock_expires_at, clock_timestamp() + :lease_duration), updated_at = :now
    WHERE id = :job_id
    """
)


class Renewal(StrEnum):
    """What became of one lease. BUSY extends nothing and is not lost."""

    RENEWED = "RENEWED"
    BUSY = "BUSY"
    LOST = "LOST"


def renew(
    db: Database, worker: RegisteredWorker, claims: Collection[Claim], *, lease_duration: timedelta
) -> Mapping[JobId, Renewal]:
    """Extend the leases of `claims` to now + `lease_duration`, never shortening one.

    Raises what `Database.run_statement` raises; the caller asks again until its last known expiry has passed.
    """
    rows = db.run_statement(
        RENEW,
        {
            "job_ids": [claim.job_id for claim in claims],
            "tokens": [claim.token.value for claim in claims],
            "worker_id": worker.id,
            "instance_id": worker.instance_id,
            "lease_duration": lease_duration,
        },
    )
    return {JobId(row[0]): Renewal(row[1]) for row in rows}


def renew_own(tx: Transaction, job: LockedJob, lease_duration: timedelta) -> None:
    """Extend the lease of a job under the lock that is held, so that a long store can not outlive it.

    Its time is read anew: the store may have taken minutes since the lock.
    """
    tx.execute(RENEW_OWN, job_id=job.id, lease_duration=lease_duration, now=job.now)
