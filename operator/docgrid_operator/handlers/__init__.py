"""What kopf calls: one thin handler for every watched kind, which notes what it is told and puts keys into queues.

Only `on.event` is used. kopf's timers, daemons and deletion handlers add finalizers, its create and update
handlers write annotations of their own; an `on.event` handler that fails is not called again, so it does nothing
that can fail.
"""

from collections.abc import Callable
from typing import Any, Protocol

import kopf

from docgrid_operator.kinds import (
    CHILD_KINDS,
    INDEXING_JOB,
    INDEXING_WORKER,
    POD,
    POOL_LABEL,
    Key,
    Kind,
    Object,
    key_of,
)
from docgrid_operator.observed import Observed

Told = Callable[[Object], None]

SETTLE_SECONDS = 1.0
"""How long a pool waits after a change of what belongs to it: a Deployment changes several times in a row."""


class Enqueue(Protocol):
    """Puts an IndexingWorker into the work queue, where it comes due `after` seconds."""

    def __call__(self, key: Key, *, after: float = 0.0) -> None:
        """Do it."""


def register(
    registry: kopf.OperatorRegistry,
    observed: Observed,
    *,
    enqueue: Enqueue,
    pod_told: Told,
    view_told: Told,
) -> None:
    """Have kopf watch everything the operator acts on.

    `enqueue` gets the IndexingWorker that an object belongs to, `pod_told` every change of a worker's pod,
    `view_told` every change of an IndexingJob. What a watch echoes of a child that we wrote puts nothing into the
    queue; of an IndexingWorker it does: the answer to a write of its status may hold a spec that is still to be seen.
    """

    def pool_told(obj: Object, _news: bool) -> None:
        enqueue(key_of(obj))

    def child_told(obj: Object, news: bool) -> None:
        if news:
            enqueue(key_of(obj), after=SETTLE_SECONDS)  # children are named as their IndexingWorker is

    def worker_pod_told(obj: Object, news: bool) -> None:
        pool = (obj["metadata"].get("labels") or {}).get(POOL_LABEL)
        if pool and news:
            enqueue(Key(key_of(obj).namespace, pool), after=SETTLE_SECONDS)
        pod_told(obj)

    _watch(registry, observed, INDEXING_WORKER, pool_told)
    for kind in CHILD_KINDS:
        _watch(registry, observed, kind, child_told)
    _watch(registry, observed, POD, worker_pod_told)
    _watch(registry, observed, INDEXING_JOB, lambda view, _news: view_told(view))


def _watch(
    registry: kopf.OperatorRegistry, observed: Observed, kind: Kind, told: Callable[[Object, bool], None]
) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)
    def handle(event: Any, **_: Any) -> None:
        obj: Object = {"apiVersion": kind.api_version, "kind": kind.name, **event["object"]}
        told(obj, observed.tell(kind, obj, deleted=event["type"] == "DELETED"))
