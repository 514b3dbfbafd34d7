"""Worker liveness from pods: notices that a worker's process has ended, says why, and has its jobs recovered at once.

A loop runs it: at once when a watch tells of a pod that ended, and on a schedule, because a watch may miss one.
Order matters: first the database's time and the live rows, then a live list of pods. A process that registered
after the list could otherwise be taken for one that has no pod.
"""

import threading
from collections.abc import Callable, Sequence

import structlog

from docgrid_core.database import Database
from docgrid_core.jobs import StopReason
from docgrid_core.store import workers
from docgrid_operator import metrics
from docgrid_operator.cluster import Cluster, Forbidden
from docgrid_operator.events import EventRecorder, EventType
from docgrid_operator.kinds import INDEXING_WORKER, POD, POOL_LABEL, Object
from docgrid_operator.observed import Observed
from docgrid_operator.resources.deployment import CONTAINER
from docgrid_operator.verdicts import LastSeen, judge, see

log = structlog.get_logger(__name__)

_NOT_SEEN = LastSeen()


class Liveness:
    """Marks rows of the operator's own pools, those whose IndexingWorker it has seen; others it leaves alone."""

    def __init__(
        self,
        db: Database,
        cluster: Cluster,
        observed: Observed,
        events: EventRecorder,
        *,
        namespaces: tuple[str, ...] | None,
        recover: Callable[[], None],
    ) -> None:
        self._db = db
        self._cluster = cluster
        self._observed = observed
        self._events = events
        self._namespaces: tuple[str | None, ...] = (None,) if namespaces is None else namespaces
        self._recover = recover
        self._pools: dict[str, Object] = {}  # by uid, all that were seen: a deleted pool's pods end later
        self._last_seen: dict[str, LastSeen] = {}  # by pod uid
        self._lock = threading.Lock()

    def told(self, pod: Object) -> bool:
        """Note what a watch tells of a pod; say whether a process may have ended."""
        last = see(pod)
        with self._lock:
            if last != _NOT_SEEN:
                self._last_seen[pod["metadata"]["uid"]] = last
        return bool(pod["metadata"].get("deletionTimestamp")) or _has_ended(pod)

    def run_once(self) -> int:
        """Judge every live worker of our pools; return how many were marked ended.

        Raises what database and cluster raise: then nobody is judged in this round.
        """
        for pool in self._observed.all(INDEXING_WORKER):
            self._pools[pool["metadata"]["uid"]] = pool
        # 1. The rows and the database's time, before the pods.
        now, live = workers.live_workers(self._db, list(self._pools))
        if not live:
            self._forget(live)
            return 0
        # 2. The pods as they are now.
        pods, unseen = self._list_pods()
        # 3. The verdicts.
        marked = 0
        for worker in live:
            if worker.namespace in unseen:
                continue  # left to its heartbeats
            reason = judge(
                pods.get(worker.pod_uid),
                started_at=worker.started_at,
                now=now,
                container=CONTAINER,
                last_seen=self._last_seen.get(worker.pod_uid, _NOT_SEEN),
            )
            marked += reason is not None and self._mark(worker, reason)
        if marked:
            self._recover()
        self._forget(live)
        return marked

    def _list_pods(self) -> tuple[dict[str, Object], set[str]]:
        """Return the pods by uid, and the namespaces whose pods may not be listed."""
        pods: dict[str, Object] = {}
        unseen = set()
        for namespace in self._namespaces:
            try:
                listed = list(self._cluster.list(POD, namespace, labels=POOL_LABEL))
            except Forbidden:
                if namespace is None:
                    raise
                unseen.add(namespace)
            else:
                pods |= {pod["metadata"]["uid"]: pod for pod in listed}
        return pods, unseen

    def _mark(self, worker: workers.LiveWorker, reason: StopReason) -> bool:
        if not workers.mark_ended(self._db, worker.id, reason):
            return False  # it stopped by itself, or somebody else was first
        metrics.WORKERS_ENDED.labels(reason=reason).inc()
        log.info("a worker has ended", pod=worker.pod_name, worker_id=worker.id, reason=reason)
        if reason in {StopReason.OOM_KILLED, StopReason.ERROR}:
            self._events.note(
                self._pools[worker.indexing_worker_uid],
                "WorkerDead",
                f"the worker in pod {worker.pod_name} ended: {reason}",
                type_=EventType.WARNING,
            )
        return True

    def _forget(self, live: Sequence[workers.LiveWorker]) -> None:
        """Forget the pods and pools that no live worker is of."""
        pods = {worker.pod_uid for worker in live}
        pools = {worker.indexing_worker_uid for worker in live}
        current = {pool["metadata"]["uid"] for pool in self._observed.all(INDEXING_WORKER)}
        self._pools = {uid: pool for uid, pool in self._pools.items() if uid in current | pools}
        with self._lock:
            self._last_seen = {uid: last for uid, last in self._last_seen.items() if uid in pods}


def _has_ended(pod: Object) -> bool:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return any("terminated" in (status.get("state") or {}) or status.get("lastState") for status in statuses)
