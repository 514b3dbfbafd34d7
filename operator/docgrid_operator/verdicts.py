"""Judging whether the process of a worker has ended, and why: the table of the liveness rules. Pure.

The judgement is about the *process*, from what its pod says. None means that nothing is known to have ended:
such a worker is left to its heartbeats.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from docgrid_core.jobs import StopReason
from docgrid_operator.kinds import Object

STATUS_LAG = timedelta(seconds=15)
"""How far a kubelet's report may be behind: a process that registered less than that ago is not judged."""

_PLANNED_EXITS = frozenset({0, 75})  # drained; fenced
_DISRUPTIONS = {
    "EvictionByEvictionAPI": StopReason.EVICTED,
    "TerminationByKubelet": StopReason.EVICTED,
    "PreemptionByScheduler": StopReason.PREEMPTED,
    "DeletionByTaintManager": StopReason.DRAINED,
    "DeletionByPodGC": StopReason.NODE_LOST,
}


@dataclass(frozen=True, slots=True)
class LastSeen:
    """What was known of a pod before it went: whether its node had gone."""

    node_lost: bool = False


def judge(
    pod: Object | None, *, started_at: datetime, now: datetime, container: str, last_seen: LastSeen
) -> StopReason | None:
    """Return why the process that started at `started_at` has ended; None if that is not known.

    `pod` is what a list or get made after `now`, the database's time, shows; None if it shows no such pod.
    """
    if started_at > now - STATUS_LAG:
        return None
    if pod is None:
        return StopReason.NODE_LOST if last_seen.node_lost else StopReason.DELETED
    ended = _ended_container(pod, container)
    if ended is None:
        return _judge_by_phase(pod)
    ended_at = _time(ended.get("finishedAt"))
    if ended_at is not None and ended_at < started_at:
        return None  # an earlier process of this container
    if ended.get("reason") == "OOMKilled":
        return StopReason.OOM_KILLED
    if ended.get("reason") == "ContainerStatusUnknown":
        return _planned(pod) or StopReason.NODE_LOST
    if planned := _planned(pod, ended_at=ended_at):
        return planned
    return StopReason.STOPPED if ended.get("exitCode") in _PLANNED_EXITS else StopReason.ERROR


def see(pod: Object) -> LastSeen:
    """Return what to remember of a pod for the time after it."""
    return LastSeen(
        node_lost=_disruption(pod) == "DeletionByPodGC" or _status(pod).get("reason") == "NodeLost"
    )


def _judge_by_phase(pod: Object) -> StopReason | None:
    """Judge a pod whose container says nothing of an end: only a pod that is over as a whole has ended it."""
    if _status(pod).get("phase") not in {"Failed", "Succeeded"}:
        return None
    return _planned(pod) or StopReason.ERROR


def _ended_container(pod: Object, container: str) -> Mapping[str, Any] | None:
    """Return how the container's process ended; None while it runs or is being created."""
    statuses = _status(pod).get("containerStatuses") or []
    found: Mapping[str, Any] = next((status for status in statuses if status["name"] == container), {})
    state = found.get("state") or {}
    if "terminated" in state:
        return dict(state["terminated"])
    last = (found.get("lastState") or {}).get("terminated")
    return dict(last) if "waiting" in state and last else None


def _planned(pod: Object, *, ended_at: datetime | None = None) -> StopReason | None:
    """Return which planned end a pod has met; None if its process ended by itself, before any of them.

    A deletion counts only if it was asked for before the container ended. `deletionTimestamp` is when the grace
    period is over, so that is taken off.
    """
    if reason := _DISRUPTIONS.get(_disruption(pod)):
        return reason
    if _status(pod).get("reason") == "Evicted":
        return StopReason.EVICTED
    deleted_at = _time(pod["metadata"].get("deletionTimestamp"))
    if deleted_at is None:
        return None
    asked_at = deleted_at - timedelta(seconds=pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    return StopReason.DELETED if ended_at is None or asked_at <= ended_at else None


def _disruption(pod: Object) -> str:
    conditions = _status(pod).get("conditions") or []
    found: Mapping[str, Any] = next(
        (c for c in conditions if c.get("type") == "DisruptionTarget" and c.get("status") == "True"), {}
    )
    return str(found.get("reason") or "")


def _status(pod: Object) -> Mapping[str, Any]:
    return pod.get("status") or {}


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
