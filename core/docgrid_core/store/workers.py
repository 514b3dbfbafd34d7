"""Worker rows: registration, heartbeat, and the ends that fence a worker for good.

STOPPED and DEAD are final. Every statement here is conditional on a live row, so no caller can revive a worker,
and whoever comes second changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import text

from docgrid_core.database import Database, Transaction, transactional
from docgrid_core.jobs import STOPPED_REASONS, CircuitState, StopReason, WorkerId, WorkerStatus
from docgrid_core.records import EmbeddingModel
from docgrid_core.store.models import model_to_serve, models_in

APPLICATION_PREFIX = "docgrid-worker "
"""What a worker's `application_name` begins with; its instance id follows."""

END_OLDER_INSTANCES = text(
    """
    UPDATE worker_nodes w
    SET status = 'DEAD', stop_reason = 'Restarted', stopped_at = clock.now, updated_at = clock.now
    FROM (SELECT clock_timestamp() AS now) AS clock
    WHERE pod_uid = :pod_uid AND pod_uid <> '' AND instance_id <> :instance_id AND status IN ('ACTIVE', 'IDLE')
    """
)

INSERT_WORKER = text(
    """
    INSERT INTO worker_nodes
      (worker_name, instance_id, host_name, ip_address, namespace, pod_name, pod_uid, node_name, indexing_worker,
       indexing_worker_uid, embedding_model_id, max_concurrency, dead_threshold, version, status,
       started_at, last_heartbeat_at)
    SELECT :name, :instance_id, :host_name, :ip_address, :namespace, :pod_name, :pod_uid, :node_name,
           :indexing_worker, :indexing_worker_uid, :model_id, :max_concurrency, :dead_threshold, :version, 'ACTIVE',
           clock.now, clock.now
    FROM (SELECT clock_timestamp() AS now) AS clock
    ON CONFLICT (instance_id) DO NOTHING
    """
)

READ_WORKER_ID = text("SELECT id FROM worker_nodes WHERE instance_id = :instance_id")

HEARTBEAT = text(
    """
    UPDATE worker_nodes w
    SET last_heartbeat_at = clock.now, updated_at = clock.now, running_jobs = :running_jobs,
        circuit = :circuit, status = CASE WHEN :running_jobs > 0 THEN 'ACTIVE' ELSE 'IDLE' END
    FROM (SELECT clock_timestamp() AS now) AS clock
    WHERE w.id = :worker_id AND instance_id = :instance_id AND status IN ('ACTIVE', 'IDLE')
    RETURNING last_heartbeat_at
    """
)

STOP = text(
    """
    UPDATE worker_nodes w
    SET status = 'STOPPED', stop_reason = 'Stopped', stopped_at = clock.now,
        updated_at = clock.now, running_jobs = 0
    FROM (SELECT clock_timestamp() AS now) AS clock
    WHERE w.id = :worker_id AND instance_id = :instance_id AND status IN ('ACTIVE', 'IDLE')
    RETURNING w.id
    """
)

MARK_POD_ENDED = text(
    """
    UPDATE worker_nodes w
    SET status = :status, stop_reason = :reason, stopped_at = clock.now, updated_at = clock.now
    FROM (SELECT clock_timestamp() AS now) AS clock
    WHERE pod_uid = :pod_uid AND pod_uid <> '' AND status IN ('ACTIVE', 'IDLE')
    RETURNING w.id
    """
)

MARK_ENDED = text(
    """
    UPDATE worker_nodes w
    SET status = :status, stop_reason = :reason, stopped_at = clock.now, updated_at = clock.now
    FROM (SELECT clock_timestamp() AS now) AS clock
    WHERE w.id = :worker_id AND status IN ('ACTIVE', 'IDLE')
    RETURNING w.id
    """
)

# Worker rows are few, retention removes the ended ones: their table is read as it is.
LIVE = text(
    """
    SELECT clock.now, w.id, w.instance_id, w.namespace, w.pod_name, w.pod_uid, w.node_name, w.indexing_worker,
           w.indexing_worker_uid, w.started_at
    FROM (SELECT clock_timestamp() AS now) AS clock
    LEFT JOIN worker_nodes w
      ON w.status IN ('ACTIVE', 'IDLE') AND w.indexing_worker_uid = ANY (CAST(:pools AS text[]))
    ORDER BY w.id
    """
)

# The clock is read before the rows: a heartbeat that arrives meanwhile only makes a worker younger.
MARK_OVERDUE = text(
    """
    WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
    UPDATE worker_nodes w
    SET status = 'DEAD', stop_reason = 'HeartbeatOverdue', stopped_at = clock.now, updated_at = clock.now
    FROM clock
    WHERE w.status IN ('ACTIVE', 'IDLE')
      AND coalesce(w.last_heartbeat_at, w.started_at) <= clock.now - w.dead_threshold
      AND CAST(:watched_since AS timestamptz) <= clock.now - w.dead_threshold
    RETURNING w.id, w.worker_name, w.namespace, w.pod_name, nullif(w.indexing_worker_uid, '')
    """
)

READ_CLOCK = text("SELECT clock_timestamp()")

# A process that ended otherwise than by its own stop may be frozen in the middle of a statement: its sessions
# are cut, so that nothing that it still holds outlives it. Those of another role are left alone unless we may
# signal them: a refusal would end the whole tick of maintenance.
TERMINATE_SESSIONS = text(
    """
    SELECT pg_terminate_backend(a.pid)
    FROM pg_stat_activity a
    JOIN worker_nodes w ON a.application_name = :prefix || w.instance_id
    WHERE a.datname = current_database() AND a.application_name LIKE :prefix || '%'
      AND w.status IN ('STOPPED', 'DEAD') AND w.stop_reason <> 'Stopped'
      AND a.backend_start < w.stopped_at
      AND (pg_has_role(a.usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))
    """
)


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What a process says of itself at registration. `instance_id` is made at its start, never from a name."""

    instance_id: UUID
    name: str
    host_name: str
    ip_address: str
    version: str
    max_concurrency: int
    dead_threshold: timedelta
    model: str = ""
    model_version: str = ""
    namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    node_name: str = ""
    indexing_worker: str = ""
    indexing_worker_uid: str = ""


@dataclass(frozen=True, slots=True)
class RegisteredWorker:
    """A worker's row and the model whose jobs it claims."""

    id: WorkerId
    instance_id: UUID
    model: EmbeddingModel


@dataclass(frozen=True, slots=True)
class LiveWorker:
    """A worker that counts as running: by its uids an observer finds the pod, and whether it is still there."""

    id: WorkerId
    instance_id: UUID
    namespace: str
    pod_name: str
    pod_uid: str
    node_name: str
    indexing_worker: str
    indexing_worker_uid: str
    started_at: datetime


@dataclass(frozen=True, slots=True)
class OverdueWorker:
    """A worker that was marked DEAD for its silence; `pool` is its IndexingWorker's uid, if it has one."""

    id: WorkerId
    name: str
    namespace: str
    pod_name: str
    pool: str | None


@transactional
def register(tx: Transaction, identity: WorkerIdentity) -> RegisteredWorker:
    """Insert the worker's row; older live rows of the same pod become DEAD `Restarted`.

    Repeating it after a lost answer returns the same row. Raises what `model_to_serve` raises when there is no
    model to work for.
    """
    model = model_to_serve(models_in(tx), identity.model, identity.model_version)
    tx.execute(END_OLDER_INSTANCES, pod_uid=identity.pod_uid, instance_id=identity.instance_id)
    tx.execute(
        INSERT_WORKER,
        instance_id=identity.instance_id,
        name=identity.name,
        host_name=identity.host_name,
        ip_address=identity.ip_address,
        version=identity.version,
        max_concurrency=identity.max_concurrency,
        dead_threshold=identity.dead_threshold,
        model_id=model.id,
        namespace=identity.namespace,
        pod_name=identity.pod_name,
        pod_uid=identity.pod_uid,
        node_name=identity.node_name,
        indexing_worker=identity.indexing_worker,
        indexing_worker_uid=identity.indexing_worker_uid,
    )
    worker_id = WorkerId(tx.execute(READ_WORKER_ID, instance_id=identity.instance_id).scalar_one())
    return RegisteredWorker(worker_id, identity.instance_id, model)


def heartbeat(
    db: Database, worker: RegisteredWorker, *, running_jobs: int, circuit: CircuitState = CircuitState.CLOSED
) -> datetime | None:
    """Say that the process lives; return the database's time, or None: this process is fenced."""
    rows = db.run_statement(
        HEARTBEAT,
        {
            "worker_id": worker.id,
            "instance_id": worker.instance_id,
            "running_jobs": running_jobs,
            "circuit": circuit,
        },
    )
    return rows[0][0] if rows else None


def stop(db: Database, worker: RegisteredWorker) -> bool:
    """Mark the worker STOPPED, its last write; False if it had been fenced before."""
    return bool(db.run_statement(STOP, {"worker_id": worker.id, "instance_id": worker.instance_id}))


def mark_pod_ended(db: Database, *, pod_uid: str, reason: StopReason) -> list[WorkerId]:
    """Mark the live workers of a pod ended, by someone who knows that its process has ended."""
    ended = {"pod_uid": pod_uid, "reason": reason, "status": _status_after(reason)}
    return [WorkerId(row[0]) for row in db.run_statement(MARK_POD_ENDED, ended)]


def mark_ended(db: Database, worker_id: WorkerId, reason: StopReason) -> bool:
    """Mark one worker ended, by someone who knows that its process has ended; False: it had ended before."""
    ended = {"worker_id": worker_id, "reason": reason, "status": _status_after(reason)}
    return bool(db.run_statement(MARK_ENDED, ended))


def live_workers(db: Database, pools: Sequence[str]) -> tuple[datetime, list[LiveWorker]]:
    """Return the database's time, and the workers of these IndexingWorkers (uids) that count as running then.

    Whoever wants to know which of them have ended asks this first and lists pods afterwards: a process that
    registers in between is not among the answers, so that it can't be taken for one without a pod.
    """
    rows = db.run_statement(LIVE, {"pools": list(pools)})
    return rows[0].now, [LiveWorker(*row[1:]) for row in rows if row.id is not None]


def mark_overdue(db: Database, *, watched_since: datetime) -> list[OverdueWorker]:
    """Mark workers whose heartbeat is overdue DEAD, and return them.

    `watched_since` is since when the caller has reached the database without a gap: a worker is judged only
    when that covers its whole dead-threshold, so that an outage of the database kills no fleet.
    """
    return [OverdueWorker(*row) for row in db.run_statement(MARK_OVERDUE, {"watched_since": watched_since})]


def read_clock(db: Database) -> datetime:
    """Return the database's time."""
    now: datetime = db.run_statement(READ_CLOCK, {})[0][0]
    return now


def terminate_sessions_of_ended(db: Database) -> int:
    """End the sessions of workers that ended otherwise than by their own stop; return how many."""
    return len(db.run_statement(TERMINATE_SESSIONS, {"prefix": APPLICATION_PREFIX}))


def _status_after(reason: StopReason) -> WorkerStatus:
    return WorkerStatus.STOPPED if reason in STOPPED_REASONS else WorkerStatus.DEAD
