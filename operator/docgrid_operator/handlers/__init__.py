"""What kopf calls: one thin handler for every watched kind, which notes what it is told and puts keys into queues.

Only `on.event` is used. kopf's timers, daemons and deletion handlers add finalizers, its create and update
handlers write annotations of their own; an `on.event` handler that fails is not called again, so it does nothing
that can fail.
"""

from collections.abc import Callable
from typing import Any

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


def register(
    registry: kopf.OperatorRegistry,
    observed: Observed,
    *,
    enqueue: Callable[[Key], None],
    pod_told: Told,
    view_told: Told,
) -> None:
    """Have kopf watch everything the operator acts on.

    `enqueue` gets the IndexingWorker that an object belongs to, `pod_told` every change of a worker's pod,
    `view_told` every change of an IndexingJob.
    """

    def child_told(obj: Object) -> None:
        enqueue(key_of(obj))  # children are named as their IndexingWorker is

    def worker_pod_told(obj: Object) -> None:
        labels = obj["metadata"].get("labels") or {}
        if pool := labels.get(POOL_LABEL):
            enqueue(Key(key_of(obj).namespace, pool))
        pod_told(obj)

    for kind in (INDEXING_WORKER, *CHILD_KINDS):
        _watch(registry, observed, kind, child_told)
    _watch(registry, observed, POD, worker_pod_told)
    _watch(registry, observed, INDEXING_JOB, view_told)


def _watch(registry: kopf.OperatorRegistry, observed: Observed, kind: Kind, told: Told) -> None:
    @kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)
    def handle(event: Any, **_: Any) -> None:
        obj: Object = {"apiVersion": kind.api_version, "kind": kind.name, **event["object"]}
        observed.tell(kind, obj, deleted=event["type"] == "DELETED")
        told(obj)
