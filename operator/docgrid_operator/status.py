"""The status of an IndexingWorker, as it should be written. Pure; the reconciler calls it."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from docgrid_operator.api.v1alpha1 import IndexingWorker
from docgrid_operator.conditions import NOT_ASKED_YET, Condition, ModelState
from docgrid_operator.kinds import API_VERSION, INDEXING_WORKER, POOL_LABEL, Object
from docgrid_operator.times import format_time


@dataclass(frozen=True, slots=True)
class Counts:
    """What the database counts for a pool. The queue's counts stop at 10,000, as everywhere people see them."""

    model: ModelState
    workers: dict[str, int]
    queue: dict[str, Any]


def build_status(
    pool: IndexingWorker,
    *,
    deployment: Object | None,
    counts: Counts | None,
    conditions: Sequence[Condition],
    previous: Object,
    now: datetime,
) -> Object:
    """Return the IndexingWorker with its status and nothing else, as server-side apply takes it.

    While the database can't be asked the counts of `previous`, the status that is there, stay. A condition's
    time moves only with its status.
    """
    live = (deployment or {}).get("status") or {}
    status = {
        "observedGeneration": pool.generation,
        "replicas": int(live.get("replicas") or 0),
        "readyReplicas": int(live.get("readyReplicas") or 0),
        "selector": f"{POOL_LABEL}={pool.name}",
        "workers": _present(counts.workers) if counts else previous.get("workers"),
        "queue": _present(counts.queue) if counts else previous.get("queue"),
        "conditions": [_dated(condition, pool, previous, now) for condition in conditions],
    }
    return {
        "apiVersion": API_VERSION,
        "kind": INDEXING_WORKER.name,
        "metadata": {"name": pool.name, "namespace": pool.namespace, "uid": pool.uid},
        "status": _present(status),
    }


def _present(fields: Mapping[str, Any]) -> Object:
    return {name: value for name, value in fields.items() if value is not None}


def _dated(condition: Condition, pool: IndexingWorker, previous: Object, now: datetime) -> Object:
    before: Object = next(
        (c for c in previous.get("conditions") or [] if c.get("type") == condition.type), {}
    )
    if condition.reason == NOT_ASKED_YET and before:
        return before  # of the operator before this one: it says more
    same = before.get("status") == condition.status and before.get("lastTransitionTime")
    return {
        "type": condition.type,
        "status": str(condition.status),
        "reason": condition.reason,
        "message": condition.message,
        "observedGeneration": pool.generation,
        "lastTransitionTime": before["lastTransitionTime"] if same else format_time(now),
    }


def leave_out(obj: Object, fields: Sequence[str]) -> Object:
    """Return the object without the fields whose paths these are, each up to a colon; of a list all is left out."""
    left: Object = copy.deepcopy(obj)
    for field in fields:
        *parents, name = field.partition(":")[0].partition("[")[0].split(".")
        place: Any = left
        for parent in parents:
            place = place.get(parent) or {}
        place.pop(name, None)
    return left
