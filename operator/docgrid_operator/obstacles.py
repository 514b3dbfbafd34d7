"""What keeps the pods of a pool from running, in words that stay the same while it does. Pure.

`conditions` asks. A kubelet that tries again and again says two things in turn, and names ids that are new with
every try: either would have the status written again each time.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from docgrid_operator.kinds import Object
from docgrid_operator.resources.deployment import CONTAINER


@dataclass(frozen=True, slots=True)
class Problem:
    """What stands in the way of a pool; `reason` is a condition's reason."""

    reason: str
    message: str


_BLOCKED = (
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImagePullBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
    "Unschedulable",
)
"""What keeps a pod from running until a person does something, worst first; other reasons pass by themselves."""

_NOT_STARTED = ("StartError", "ContainerCannotRun")
"""Ends of a container whose process never began: it has no log, the reason is in the end's message."""
_PASSING = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12,}")
"""Ids of containers and pods: new with every try."""
_SENTENCE = 500  # characters of a message that is not ours


def find_replica_failure(status: Object) -> Problem | None:
    """Return why the Deployment's ReplicaSet can't create pods: a quota, an admission policy."""
    for condition in status.get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = re.sub(r'^pods "[^"]*" is ', "a pod is ", str(condition.get("message") or ""))
            return Problem(str(condition.get("reason") or "ReplicaFailure"), message[:_SENTENCE])
    return None


def find_obstacle(pods: Sequence[Object]) -> Problem | None:
    """Return what keeps a pod's container from running, the worst first; None if nothing that needs a person."""
    found = [problem for pod in pods if _is_wanted(pod) for problem in _obstacles(pod)]
    return min(found, key=_severity, default=None)


def _obstacles(pod: Object) -> Iterator[Problem]:
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        if problem := _obstacle_of(container, pod["metadata"]["name"]):
            yield problem
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            yield Problem("Unschedulable", "no node takes a worker's pod: `kubectl describe pod` says why")


def _obstacle_of(container: Object, pod_name: str) -> Problem | None:
    """Return what keeps one container from running, the same at each of the steps of its trying again."""
    if container.get("ready"):
        return None
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    ended = _last_end(container)
    if ended.get("reason") in _NOT_STARTED:
        return Problem("RunContainerError", _steady(ended.get("message"), pod_name))
    if reason in {"ErrImagePull", "ImagePullBackOff"}:  # the kubelet says the one, then the other
        return Problem("ImagePullBackOff", f"the image {container.get('image')} can not be pulled")
    if reason == "CrashLoopBackOff" or ended:
        who = "the worker" if container.get("name") == CONTAINER else f"the container {container.get('name')}"
        how = f"exit code {ended.get('exitCode')}, {ended.get('reason') or 'Error'}"
        logs = f"kubectl logs -p -c {container.get('name')}"
        return Problem("CrashLoopBackOff", f"{who} ended ({how}) and is started again: `{logs}` says why")
    if reason in _BLOCKED:
        return Problem(reason, _steady(waiting.get("message"), pod_name))
    return None


def _last_end(container: Object) -> Object:
    """Return how the container's last process ended, whether or not another one has begun."""
    states = (container.get("state") or {}, container.get("lastState") or {})
    found: Object = next((state["terminated"] for state in states if state.get("terminated")), {})
    return found


def _steady(message: Any, pod_name: str) -> str:
    """Return somebody else's message without what is another one at the next try: ids, the pod's name."""
    text = str(message or "the kubelet gives no message")
    return _PASSING.sub("…", text.replace(pod_name, "…"))[:_SENTENCE]


def _is_wanted(pod: Object) -> bool:
    """Say whether a pod is to run: one that is being deleted, or was evicted, holds nothing up."""
    over = (pod.get("status") or {}).get("phase") in {"Failed", "Succeeded"}
    return not over and not pod["metadata"].get("deletionTimestamp")


def _severity(problem: Problem) -> tuple[int, str]:
    return _BLOCKED.index(problem.reason), problem.message
