"""Recovery: taking back the jobs of workers that ended, and of leases that ran out.

Any number of processes may run it: one holds the advisory lock of a batch, the others idle. A batch is locked by
one statement, read by the next, decided in Python (`decisions`, pure) and written by one statement for each kind
of outcome.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.jobs import JobId, StopReason, VersionStatus
from docgrid_core.retry import RetryPolicy
from docgrid_core.store.decisions import Decision, Facts, Retry, Terminal, decide, quarantine
from docgrid_core.store.transitions import Release, fail_jobs, release_jobs, retry_jobs

# An arbitrary constant that names the lock of recovery in pg_locks.
_LOCK = 0x72656376

TRY_LOCK = text("SELECT pg_try_advisory_xact_lock(:key)")

# Jobs of ended workers first: their end is known. Rows that somebody holds are being settled right now. Each
# worker's jobs are one range of an index, and so are the expired leases: the statement's time is enough to find
# them, and can bound a range, which the clock can not.
LOCK_CANDIDATES = text(
    """
    WITH ended AS MATERIALIZED (
      SELECT j.id
      FROM (SELECT id FROM worker_nodes WHERE status IN ('STOPPED', 'DEAD') ORDER BY stopped_at) AS w
      CROSS JOIN LATERAL (
        SELECT id FROM embedding_jobs
        WHERE status = 'PROCESSING' AND locked_by_worker_id = w.id AND NOT id = ANY (CAST(:excluded AS bigint[]))
        LIMIT :limit
        FOR NO KEY UPDATE SKIP LOCKED
      ) AS j
      LIMIT :limit
    ), expired AS MATERIALIZED (
      SELECT id FROM embedding_jobs
      WHERE status = 'PROCESSING' AND lock_expires_at <= statement_timestamp()
        AND NOT id = ANY (CAST(:excluded AS bigint[]))
      ORDER BY lock_expires_at
      LIMIT :limit
      FOR NO KEY UPDATE SKIP LOCKED
    )
    SELECT id FROM ended UNION SELECT id FROM expired
    """
)

LOCK_ONE = text("SELECT id FROM embedding_jobs WHERE id = :job_id FOR NO KEY UPDATE")

LOCK_VERSIONS = text(
    """
    SELECT id FROM document_versions
    WHERE id IN (SELECT document_version_id FROM embedding_jobs WHERE id = ANY (:job_ids))
    ORDER BY id
    FOR NO KEY UPDATE
    """
)

LOCK_DOCUMENTS = text(
    """
    SELECT id FROM documents
    WHERE id IN (
      SELECT v.document_id FROM embedding_jobs j JOIN document_versions v ON v.id = j.document_version_id
      WHERE j.id = ANY (:job_ids))
    ORDER BY id
    FOR NO KEY UPDATE
    """
)

READ_FACTS = text(
    """
    WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
    SELECT j.id, j.retry_count, j.max_retry_count, j.lock_expires_at <= clock.now AS expired,
           CASE WHEN w.status IN ('STOPPED', 'DEAD') THEN w.stop_reason END AS stop_reason,
           nullif(w.indexing_worker_uid, '') AS pool, v.status AS version_status, d.deleted_at IS NOT NULL AS deleted,
           a.started, a.foreign_started, a.crashes, a.releases_in_a_row, clock.now
    FROM embedding_jobs j
    JOIN worker_nodes w ON w.id = j.locked_by_worker_id
    JOIN document_versions v ON v.id = j.document_version_id
    JOIN documents d ON d.id = v.document_id
    CROSS JOIN clock
    CROSS JOIN LATERAL (
      SELECT count(*) FILTER (WHERE status = 'STARTED') AS started,
             count(*) FILTER (WHERE status = 'STARTED' AND claim_token <> j.claim_token) AS foreign_started,
             count(*) FILTER (
               WHERE failure_type IN ('WORKER_LEASE_EXPIRED', 'WORKER_OOM_KILLED', 'WORKER_CRASHED')) AS crashes,
             count(*) FILTER (WHERE status = 'RELEASED' AND attempt_no > last_other) AS releases_in_a_row
      FROM (
        SELECT *, coalesce(max(attempt_no) FILTER (
                    WHERE status <> 'STARTED' AND (status <> 'RELEASED' OR error_code IS NULL)) OVER (), 0)
                  AS last_other
        FROM embedding_job_attempts WHERE embedding_job_id = j.id
      ) AS history
    ) AS a
    WHERE j.id = ANY (:job_ids) AND j.status = 'PROCESSING'
    ORDER BY j.id
    """
)


@dataclass(frozen=True, slots=True)
class PoolRecovery:
    """The jobs taken back from the workers of one pool for one reason.

    `pool` is the IndexingWorker's uid, None for workers outside any; `reason` the stop reason of the workers, or
    `LeaseExpired`. Jobs whose rows disagree count as failed.
    """

    pool: str | None
    reason: str
    released: int = 0
    retried: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """How many jobs left PROCESSING, and how: in all, which is what reports are compared by, and by pool."""

    released: int = 0
    retried: int = 0
    failed: int = 0
    pools: tuple[PoolRecovery, ...] = field(default=(), compare=False)

    @property
    def settled(self) -> int:
        """Return how many jobs left PROCESSING."""
        return self.released + self.retried + self.failed

    def __add__(self, other: "RecoveryReport") -> "RecoveryReport":
        return RecoveryReport(
            self.released + other.released,
            self.retried + other.retried,
            self.failed + other.failed,
            pools=_merge(self.pools + other.pools),
        )


@transactional
def recover_batch(
    tx: Transaction, *, limit: int, policy: RetryPolicy, excluded: Collection[JobId] = ()
) -> RecoveryReport | None:
    """Recover up to `limit` jobs of each kind, oldest first; None: another process is at it.

    `excluded` are jobs that the caller settles one by one.
    """
    if not tx.execute(TRY_LOCK, key=_LOCK).scalar_one():
        return None
    rows = tx.execute(LOCK_CANDIDATES, limit=limit, excluded=list(excluded))
    return _settle(tx, [JobId(row[0]) for row in rows], policy=policy)


@transactional
def lock_candidates(tx: Transaction, *, limit: int, excluded: Collection[JobId] = ()) -> list[JobId]:
    """Return the jobs that the next batch would take: for settling them one by one."""
    rows = tx.execute(LOCK_CANDIDATES, limit=limit, excluded=list(excluded))
    return [JobId(row[0]) for row in rows]


@transactional
def recover_one(tx: Transaction, job_id: JobId, *, policy: RetryPolicy) -> RecoveryReport:
    """Recover one job in a transaction of its own."""
    tx.execute(LOCK_ONE, job_id=job_id)
    return _settle(tx, [job_id], policy=policy)


@transactional
def quarantine_one(tx: Transaction, job_id: JobId) -> RecoveryReport:
    """End one job that can not be recovered, so that it never blocks the others.

    One that was recovered after all, since it failed to be, is left alone: a worker may run it again by now.
    """
    tx.execute(LOCK_ONE, job_id=job_id)
    decided = {fact: Terminal(quarantine(fact)) for fact in _read_facts(tx, [job_id]) if fact.needs_recovery}
    return _write(tx, decided)


def _settle(tx: Transaction, job_ids: list[JobId], *, policy: RetryPolicy) -> RecoveryReport:
    if not job_ids:
        return RecoveryReport()
    facts = _read_facts(tx, job_ids)
    decided = {fact: decision for fact in facts if (decision := decide(fact, policy=policy)) is not None}
    return _write(tx, decided)


def _write(tx: Transaction, decided: Mapping[Facts, Decision]) -> RecoveryReport:
    if not decided:
        return RecoveryReport()
    now = next(iter(decided)).now
    decisions = decided.values()
    release_jobs(tx, [decision for decision in decisions if isinstance(decision, Release)], now=now)
    retries = [decision.failure for decision in decisions if isinstance(decision, Retry)]
    retry_jobs(tx, retries, now=now, urgent=True)
    fail_jobs(tx, [decision.failure for decision in decisions if isinstance(decision, Terminal)], now=now)
    return _report([_count(fact, decision) for fact, decision in decided.items()])


def _count(fact: Facts, decision: Decision) -> PoolRecovery:
    return PoolRecovery(
        fact.pool,
        fact.reason,
        released=int(isinstance(decision, Release)),
        retried=int(isinstance(decision, Retry)),
        failed=int(isinstance(decision, Terminal)),
    )


def _report(parts: Iterable[PoolRecovery]) -> RecoveryReport:
    pools = _merge(parts)
    return RecoveryReport(
        sum(pool.released for pool in pools),
        sum(pool.retried for pool in pools),
        sum(pool.failed for pool in pools),
        pools,
    )


def _merge(parts: Iterable[PoolRecovery]) -> tuple[PoolRecovery, ...]:
    """Return one line for each pool and reason."""
    sums: dict[tuple[str | None, str], list[int]] = {}
    for part in parts:
        line = sums.setdefault((part.pool, part.reason), [0, 0, 0])
        line[0] += part.released
        line[1] += part.retried
        line[2] += part.failed
    return tuple(PoolRecovery(*group, *line) for group, line in sums.items())


def _read_facts(tx: Transaction, job_ids: list[JobId]) -> list[Facts]:
    """Lock versions, then documents, and read everything that the decision needs after both."""
    tx.execute(LOCK_VERSIONS, job_ids=job_ids)
    tx.execute(LOCK_DOCUMENTS, job_ids=job_ids)
    return [
        Facts(
            job_id=row.id,
            retry_count=row.retry_count,
            max_retry_count=row.max_retry_count,
            expired=row.expired,
            stop_reason=None if row.stop_reason is None else StopReason(row.stop_reason),
            version_status=VersionStatus(row.version_status),
            deleted=row.deleted,
            started=row.started,
            foreign_started=row.foreign_started,
            crashes=row.crashes,
            releases_in_a_row=row.releases_in_a_row,
            now=row.now,
            pool=row.pool,
        )
        for row in tx.execute(READ_FACTS, job_ids=job_ids)
    ]
