"""The list of workers, as what they count by the database's clock."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import RowMapping, text

from docgrid_core.database import Transaction, transactional
from docgrid_core.jobs import CircuitState, StopReason, WorkerId, WorkerStatus
from docgrid_core.retry import effective_status
from docgrid_core.store.queries.answers import build

MAX_WORKERS = 1000

# Worker rows are few, retention removes the ended ones: their table is sorted as it is.
LIST = text(
    """
    SELECT w.id, w.worker_name AS name, w.instance_id, w.host_name, w.namespace, w.pod_name, w.node_name,
           w.indexing_worker, m.model_name AS model, w.version, w.max_concurrency, w.running_jobs, w.circuit,
           w.status, w.status AS effective_status, w.stop_reason, w.dead_threshold, w.started_at,
           w.last_heartbeat_at, clock_timestamp() - w.last_heartbeat_at AS since_heartbeat, w.stopped_at
    FROM worker_nodes w
    LEFT JOIN embedding_models m ON m.id = w.embedding_model_id
    ORDER BY w.status IN ('STOPPED', 'DEAD'), w.id DESC
    LIMIT :limit
    """
)


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker process.

    `status` is what its row says, `effective_status` what it counts as: a live row without a heartbeat for as
    long as its dead-threshold is DEAD, whether or not maintenance has marked it yet.
    """

    id: WorkerId
    name: str
    instance_id: UUID
    host_name: str
    namespace: str
    pod_name: str
    node_name: str
    indexing_worker: str
    model: str | None
    version: str
    max_concurrency: int
    running_jobs: int
    circuit: CircuitState
    status: WorkerStatus
    effective_status: WorkerStatus
    stop_reason: StopReason | None
    since_heartbeat: timedelta | None
    dead_threshold: timedelta
    started_at: datetime
    last_heartbeat_at: datetime | None
    stopped_at: datetime | None


@transactional
def list_workers(tx: Transaction) -> list[WorkerView]:
    """Return the workers, live ones first, each kind newest first; at most 1,000."""
    return [_worker(row) for row in tx.execute(LIST, limit=MAX_WORKERS).mappings()]


def _worker(row: RowMapping) -> WorkerView:
    worker = build(WorkerView, row, status=WorkerStatus, circuit=CircuitState, stop_reason=StopReason)
    status = effective_status(
        worker.status, since_heartbeat=worker.since_heartbeat, dead_threshold=worker.dead_threshold
    )
    return replace(worker, effective_status=status)
