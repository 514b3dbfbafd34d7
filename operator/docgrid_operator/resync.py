"""The resync: lists everything anew, so that what a watch missed heals, and puts every IndexingWorker in the queue."""

import threading
from collections.abc import Callable

import structlog

from docgrid_operator.cluster import Cluster, Forbidden
from docgrid_operator.kinds import (
    CHILD_KINDS,
    INDEXING_JOB,
    INDEXING_WORKER,
    POD,
    POOL_LABEL,
    Key,
    Kind,
    key_of,
)
from docgrid_operator.loops import note_progress
from docgrid_operator.observed import Observed

log = structlog.get_logger(__name__)

WATCHED = (INDEXING_WORKER, *CHILD_KINDS, POD)


def label_selector(kind: Kind) -> str:
    """Return the label by which objects of a kind are watched and listed: those of a pool, for the kinds of others."""
    return "" if kind in {INDEXING_WORKER, INDEXING_JOB} else POOL_LABEL


class Resync:
    """Compares what the watches told with what is there."""

    def __init__(
        self,
        cluster: Cluster,
        observed: Observed,
        *,
        namespaces: tuple[str, ...] | None,
        views_namespace: str,
        enqueue: Callable[[list[Key]], None],
    ) -> None:
        self._cluster = cluster
        self._observed = observed
        self._namespaces: tuple[str | None, ...] = (None,) if namespaces is None else namespaces
        self._views_namespace = views_namespace
        self._enqueue = enqueue
        self._forbidden: set[str] = set()
        self.done_once = threading.Event()

    def run_once(self) -> None:
        """List every kind; raises what the cluster raises, after which the next round starts afresh.

        A namespace besides the release's own that may not be listed (it was deleted, and our rights with it) is
        left out: the others' pools are served.
        """
        for namespace in self._namespaces:
            try:
                for kind in WATCHED:
                    self._list(kind, namespace)
            except Forbidden:
                if namespace in {None, self._views_namespace}:
                    raise
                self._leave_out(str(namespace))
            else:
                self._forbidden.discard(str(namespace))
        self._list(INDEXING_JOB, self._views_namespace)
        pools = self._observed.all(INDEXING_WORKER)
        self._enqueue([key_of(pool) for pool in pools])
        if not self.done_once.is_set():
            self.done_once.set()
            log.info("the operator works", indexing_workers=len(pools))

    def _leave_out(self, namespace: str) -> None:
        for kind in WATCHED:
            self._observed.listed(kind, namespace, [], since=self._observed.begin_list(kind))
        if namespace not in self._forbidden:
            self._forbidden.add(namespace)
            log.warning("a namespace may not be listed and is left out", namespace=namespace)

    def _list(self, kind: Kind, namespace: str | None) -> None:
        note_progress()
        since = self._observed.begin_list(kind)
        objects = list(self._cluster.list(kind, namespace, labels=label_selector(kind)))
        self._observed.listed(kind, namespace, objects, since=since)
