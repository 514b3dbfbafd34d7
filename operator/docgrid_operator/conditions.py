"""The conditions of an IndexingWorker: what holds, why, and what a person can do. Pure.

Each `derive_…` is a chain of guards: the first that fits gives status, reason and message. A message names
nothing that changes by itself, so that a steady pool's status is written once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from docgrid_operator.api.v1alpha1 import IndexingWorker
from docgrid_operator.kinds import Object
from docgrid_operator.obstacles import Problem, find_obstacle, find_replica_failure
from docgrid_operator.resources.deployment import desired_replicas

__all__ = [
    "NOT_ASKED_YET",
    "Condition",
    "DatabaseState",
    "ModelState",
    "Problem",
    "Status",
    "derive_conditions",
]


class Status(StrEnum):
    """The three values of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition, without its times."""

    type: str
    status: Status
    reason: str
    message: str


class ModelState(StrEnum):
    """What the database says of a pool's embedding model."""

    UNKNOWN = "Unknown"
    READY = "Ready"
    MISSING = "Missing"
    NOT_SEARCHABLE = "NotSearchable"


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """What the operator knows of the database; `reachable` is None until it was asked."""

    reachable: bool | None = None
    error: str = ""


NOT_ASKED_YET = "NotAskedYet"
"""The reason of a condition that the operator does not know yet, because it has just started."""
_LATE = "ProgressDeadlineExceeded"
"""What the Deployment's controller says of a rollout that has not got on for `progressDeadlineSeconds`."""


def derive_conditions(
    pool: IndexingWorker,
    *,
    deployment: Object | None,
    pods: Sequence[Object],
    problem: Problem | None,
    database: DatabaseState,
    model: ModelState,
    now: datetime,
) -> list[Condition]:
    """Return all conditions of a pool, in the order in which they are shown."""
    model_ready = derive_model_ready(pool, database, model)
    return [
        _explain_by_model(derive_available(pool, deployment, pods, problem, now=now), model_ready),
        derive_progressing(pool, deployment, pods, problem, now=now),
        derive_database_reachable(database),
        model_ready,
        derive_suspended(pool),
    ]


def _explain_by_model(available: Condition, model_ready: Condition) -> Condition:
    """Name a model that is missing as the reason: without it no worker registers, so each ends and begins anew."""
    ends = {"WorkersNotReady", "CrashLoopBackOff"}
    if available.status is Status.FALSE and available.reason in ends and model_ready.status is Status.FALSE:
        return replace(available, reason=model_ready.reason, message=model_ready.message)
    return available


def derive_available(
    pool: IndexingWorker,
    deployment: Object | None,
    pods: Sequence[Object],
    problem: Problem | None,
    *,
    now: datetime,
) -> Condition:
    """Say whether workers of the pool are there and ready."""
    available = "Available"
    wanted = desired_replicas(pool)
    status = (deployment or {}).get("status") or {}
    ready = int(status.get("readyReplicas") or 0)
    if pool.spec.suspend:
        return Condition(available, Status.FALSE, "Suspended", "spec.suspend is true: no worker is wanted")
    if wanted == 0:
        return Condition(available, Status.FALSE, "ScaledToZero", "spec.replicas is 0: no worker is wanted")
    if ready >= wanted:
        return Condition(available, Status.TRUE, "WorkersReady", "every worker is ready")
    obstacle = find_obstacle(pods, now=now) or problem or find_replica_failure(status)
    is_available = Status.TRUE if _condition(status, "Available") == Status.TRUE and ready else Status.FALSE
    if obstacle is not None:
        return Condition(available, is_available, obstacle.reason, obstacle.message)
    if is_available is Status.TRUE:
        return Condition(available, Status.TRUE, "SomeWorkersReady", "enough workers are ready, but not all")
    return Condition(available, Status.FALSE, "WorkersNotReady", "not enough workers are ready yet")


def derive_progressing(
    pool: IndexingWorker,
    deployment: Object | None,
    pods: Sequence[Object],
    problem: Problem | None,
    *,
    now: datetime,
) -> Condition:
    """Say whether the pool is on its way to what its spec says; False too if it can not get there."""
    progressing = "Progressing"
    if problem is not None:
        return Condition(progressing, Status.FALSE, problem.reason, problem.message)
    if deployment is None:
        return Condition(progressing, Status.TRUE, "Creating", "the Deployment is being created")
    status = deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 0):
        return Condition(
            progressing, Status.TRUE, "Updating", "the Deployment has not seen its newest spec yet"
        )
    obstacle = find_obstacle(pods, now=now) or find_replica_failure(status)
    held_up = f": {obstacle.message}" if obstacle else ""
    if _is_rolling_out(pool, status):
        return _derive_rollout(deployment, held_up)
    wanted = desired_replicas(pool)
    if int(status.get("availableReplicas") or 0) < wanted:
        return Condition(progressing, Status.TRUE, "Starting", f"new workers are not ready yet{held_up}")
    if int(status.get("replicas") or 0) > wanted or any(map(_is_ending, pods)):
        return Condition(progressing, Status.TRUE, "ScalingDown", "workers that are not wanted are ending")
    return Condition(progressing, Status.FALSE, "RolledOut", "every worker has the newest spec")


def _is_rolling_out(pool: IndexingWorker, status: Object) -> bool:
    """Say whether pods of the Deployment's newest spec are missing or late, or older ones still there."""
    wanted = desired_replicas(pool)
    updated = int(status.get("updatedReplicas") or 0)
    late = wanted > 0 and _reason(status, "Progressing") == _LATE
    return updated < wanted or int(status.get("replicas") or 0) > updated or late


def _is_ending(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _derive_rollout(deployment: Object, held_up: str) -> Condition:
    progressing = "Progressing"
    if (deployment.get("spec") or {}).get("paused"):
        return Condition(
            progressing, Status.FALSE, "Paused", "the Deployment is paused: `kubectl rollout resume` goes on"
        )
    if _reason(deployment.get("status") or {}, "Progressing") == _LATE:
        message = f"the rollout has not got on for ten minutes{held_up}"
        return Condition(progressing, Status.FALSE, _LATE, message)
    message = f"workers of the newest spec are taking over{held_up}"
    return Condition(progressing, Status.TRUE, "RollingOut", message)


def derive_database_reachable(database: DatabaseState) -> Condition:
    """Say whether the operator, and so most likely the workers, reaches the database."""
    reachable = "DatabaseReachable"
    if database.reachable is None:
        return Condition(reachable, Status.UNKNOWN, NOT_ASKED_YET, "the operator has just started")
    if database.reachable:
        return Condition(reachable, Status.TRUE, "Connected", "the operator reaches the database")
    return Condition(
        reachable,
        Status.FALSE,
        "DatabaseUnreachable",
        f"the operator can not use the database ({database.error}): its log says more; it keeps trying",
    )


def derive_model_ready(pool: IndexingWorker, database: DatabaseState, model: ModelState) -> Condition:
    """Say whether the pool's embedding model is there and active, so that its jobs can be claimed."""
    ready = "ModelReady"
    name = f"{pool.spec.model.name} {pool.spec.model.version or ''}".strip()
    if database.reachable is False:
        return Condition(
            ready, Status.UNKNOWN, "DatabaseNotAsked", "the database could not be asked for the model"
        )
    if database.reachable is None or model is ModelState.UNKNOWN:
        return Condition(ready, Status.UNKNOWN, NOT_ASKED_YET, "the model has not been looked for yet")
    if model is ModelState.MISSING:
        return Condition(
            ready,
            Status.FALSE,
            "ModelNotFound",
            f"the database has no embedding model {name}: add it with `docgrid models add`, or correct spec.model",
        )
    if model is ModelState.NOT_SEARCHABLE:
        return Condition(
            ready,
            Status.FALSE,
            "ModelNotActive",
            f"the embedding model {name} is not active: `docgrid models activate` makes it so",
        )
    return Condition(ready, Status.TRUE, "ModelActive", f"the embedding model {name} is active")


def derive_suspended(pool: IndexingWorker) -> Condition:
    """Say whether a person has turned the pool off."""
    if pool.spec.suspend:
        return Condition(
            "Suspended", Status.TRUE, "Suspended", "spec.suspend is true: the pool has no workers"
        )
    return Condition("Suspended", Status.FALSE, "NotSuspended", "the pool runs")


def _condition(status: Object, type_: str) -> str:
    return _field(status, type_, "status")


def _reason(status: Object, type_: str) -> str:
    return _field(status, type_, "reason")


def _field(status: Object, type_: str, field: str) -> str:
    found: Any = next((c for c in status.get("conditions") or [] if c.get("type") == type_), {})
    return str(found.get(field) or "")
