"""Counting: what the database knows of every pool, for the IndexingWorkers' status and for metrics.

A loop runs it. It only remembers: the reconciler writes a status, and is asked to for those pools alone whose
counts have changed.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from prometheus_client import Gauge

from docgrid_core.database import Database
from docgrid_core.store.queries.pools import PoolCounts, PoolKey, pool_counts
from docgrid_core.store.queries.queue import QueueDepth
from docgrid_operator import metrics
from docgrid_operator.api.v1alpha1 import IndexingWorker, InvalidObject
from docgrid_operator.conditions import ModelState
from docgrid_operator.kinds import INDEXING_WORKER, Key
from docgrid_operator.observed import Observed
from docgrid_operator.reconciler import PoolFacts
from docgrid_operator.status import Counts
from docgrid_operator.times import format_time

_QUEUE_STATES = ("ready", "delayed", "processing", "failed")


class Counting:
    """Keeps the counts of `facts` up to date."""

    def __init__(
        self,
        db: Database,
        observed: Observed,
        *,
        facts: PoolFacts,
        status_changed: Callable[[list[Key]], None],
    ) -> None:
        self._db = db
        self._observed = observed
        self._facts = facts
        self._status_changed = status_changed
        self._exported = _Exported()

    def run_once(self) -> None:
        """Count for every pool there is; raises what the database raises: the counts of before stay then."""
        pools = list(self._pools())
        keys = [PoolKey(pool.uid, pool.spec.model.name, pool.spec.model.version) for pool in pools]
        found = pool_counts(self._db, keys)
        before = self._facts.counts
        self._facts.counts = {uid: _to_counts(counts) for uid, counts in found.items()}
        self._status_changed(
            [
                Key(pool.namespace, pool.name)
                for pool in pools
                if self._facts.counts[pool.uid] != before.get(pool.uid)
            ]
        )
        queues = [counts.queue for counts in found.values() if counts.queue is not None]
        self._exported.show(metrics.POOL_WORKERS, _pool_workers(pools, found))
        self._exported.show(metrics.QUEUE_JOBS, _queue_jobs(queues))
        self._exported.show(metrics.QUEUE_OLDEST_READY, _oldest_ready(queues))

    def _pools(self) -> Iterable[IndexingWorker]:
        for obj in self._observed.all(INDEXING_WORKER):
            try:
                yield IndexingWorker.parse(obj)
            except InvalidObject:
                continue  # the reconciler tells of it


def _to_counts(counts: PoolCounts) -> Counts:
    return Counts(
        model=_model_state(counts),
        workers=asdict(counts.workers),
        queue=_queue(counts.queue),
    )


def _model_state(counts: PoolCounts) -> ModelState:
    if counts.model is None:
        return ModelState.MISSING
    ready = counts.model.is_active and counts.model.is_searchable
    return ModelState.READY if ready else ModelState.NOT_SEARCHABLE


def _queue(depth: QueueDepth | None) -> dict[str, object]:
    """Return a queue as a status shows it. When it began, not how old it is: a steady queue writes nothing."""
    if depth is None:
        return dict.fromkeys(_QUEUE_STATES, 0)
    counts = {state: getattr(depth, state).value for state in _QUEUE_STATES}
    oldest = format_time(depth.oldest_ready_at)
    return counts if oldest is None else {**counts, "oldestReadyAt": oldest}


class _Exported:
    """Gauges whose labels come and go: a pool that is gone is shown no longer, one that stays without a gap."""

    def __init__(self) -> None:
        self._shown: dict[Gauge, frozenset[tuple[str, ...]]] = {}

    def show(self, gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
        """Set these values, by their labels, and take away all others."""
        for labels, value in values.items():
            gauge.labels(*labels).set(value)
        for labels in self._shown.get(gauge, frozenset()) - values.keys():
            gauge.remove(*labels)
        self._shown[gauge] = frozenset(values)


def _pool_workers(
    pools: Iterable[IndexingWorker], found: Mapping[str, PoolCounts]
) -> dict[tuple[str, ...], float]:
    return {
        (pool.namespace, pool.name, state): number
        for pool in pools
        for state, number in asdict(found[pool.uid].workers).items()
    }


def _queue_jobs(queues: Iterable[QueueDepth]) -> dict[tuple[str, ...], float]:
    return {
        (depth.model, depth.model_version, state): getattr(depth, state).value
        for depth in queues
        for state in _QUEUE_STATES
    }


def _oldest_ready(queues: Iterable[QueueDepth]) -> dict[tuple[str, ...], float]:
    return {
        (depth.model, depth.model_version): depth.oldest_ready_at.timestamp() if depth.oldest_ready_at else 0
        for depth in queues
    }
