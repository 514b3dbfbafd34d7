"""What keeps the pods of a pool from running, in words that stay the same while it does. Pure.

`conditions` asks. A kubelet that tries again and again says two things in turn, and names ids that are new with
every try: either would have the status written again each time.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from docgrid_operator.kinds import Object
from docgrid_operator.resources.deployment import CONTAINER
from docgrid_operator.times import parse_time


@dataclass(frozen=True, slots=True)
class Problem:
    """What stands in the way of a pool; `reason` is a condition's reason."""

    reason: str
    message: str


_CREATING = "ContainerCreating"
"""What a kubelet says of every container at first: only for long is it an obstacle."""
_BLOCKED = (
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImagePullBackOff",
    "CreateContainerConfigError",
    "CreateContainerError",
    _CREATING,
    "RunContainerError",
    "CrashLoopBackOff",
    "Unschedulable",
)
"""What keeps a pod from running until a person does something, worst first; other reasons pass by themselves."""

_NOT_STARTED = ("StartError", "ContainerCannotRun")
"""Ends of a container whose process never began: it has no log, the reason is in the end's message."""
_PASSING = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{12,}")
"""Ids of containers and pods: new with every try."""
_MOUNTED = (
    ("configMap", "name", "ConfigMap"),
    ("secret", "secretName", "Secret"),
    ("secret", "name", "Secret"),  # of a projected volume
    ("persistentVolumeClaim", "claimName", "PersistentVolumeClaim"),
)
"""Field of a volume, of what it names, and the kind."""
VOLUMES_WITHIN = timedelta(seconds=30)
"""In which volumes and network of a pod are there, unless something is wrong."""
_SENTENCE = 500  # characters of a message that is not ours


def find_replica_failure(status: Object) -> Problem | None:
    """Return why the Deployment's ReplicaSet can't create pods: a quota, an admission policy."""
    for condition in status.get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            message = re.sub(r'^pods "[^"]*" is ', "a pod is ", str(condition.get("message") or ""))
            return Problem(str(condition.get("reason") or "ReplicaFailure"), message[:_SENTENCE])
    return None


def find_obstacle(pods: Sequence[Object], *, now: datetime) -> Problem | None:
    """Return what keeps a pod's container from running, the worst first; None if nothing that needs a person."""
    found = [problem for pod in pods if _is_wanted(pod) for problem in _obstacles(pod, now)]
    return min(found, key=_severity, default=None)


def next_look(pods: Sequence[Object], *, now: datetime) -> float | None:
    """Return the seconds after which a pod's silence becomes an obstacle: nothing tells when it does."""
    begun = [since for pod in pods if _is_wanted(pod) and (since := _waits_for_volumes_since(pod))]
    left = [(since + VOLUMES_WITHIN - now).total_seconds() for since in begun]
    return min((seconds for seconds in left if seconds >= 0), default=None)


def _obstacles(pod: Object, now: datetime) -> Iterator[Problem]:
    status = pod.get("status") or {}
    since = _waits_for_volumes_since(pod)
    if since is not None and now - since > VOLUMES_WITHIN:
        yield Problem(_CREATING, _explain_volumes(pod))
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        if problem := _obstacle_of(container, pod["metadata"]["name"]):
            yield problem
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
            yield Problem("Unschedulable", "no node takes a worker's pod: `kubectl describe pod` says why")


def _waits_for_volumes_since(pod: Object) -> datetime | None:
    """Return since when a pod that has a node waits for its volumes and its network; None if it does not.

    The kubelet says what is missing in Events alone, which the operator does not read.
    """
    status = pod.get("status") or {}
    found = {condition["type"]: condition for condition in status.get("conditions") or []}
    placed, made = found.get("PodScheduled") or {}, found.get("PodReadyToStartContainers") or {}
    if status.get("phase") != "Pending" or placed.get("status") != "True" or made.get("status") != "False":
        return None
    return max(parse_time(condition["lastTransitionTime"]) for condition in (placed, made))


def _explain_volumes(pod: Object) -> str:
    """Name what the pod mounts: most often it is one of these that is not there."""
    mounted = sorted(set(_mounted((pod.get("spec") or {}).get("volumes") or [])))
    missing = f" (it mounts {', '.join(mounted)})" if mounted else ""
    return (
        f"a worker's pod waits for its volumes or its network for more than {VOLUMES_WITHIN.seconds} s{missing}:"
        " `kubectl describe pod` says what is missing"
    )


def _mounted(volumes: Sequence[Object]) -> Iterator[str]:
    for volume in volumes:
        for source in (volume, *((volume.get("projected") or {}).get("sources") or [])):
            for kind, field, name in _MOUNTED:
                if found := (source.get(kind) or {}).get(field):
                    yield f"{name} {found}"


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
        why = _last_words(container, ended) or f"`kubectl logs -p -c {container.get('name')}` says why"
        return Problem("CrashLoopBackOff", f"{who} ended ({how}) and is started again: {why}")
    if reason in _BLOCKED and reason != _CREATING:
        return Problem(reason, _steady(waiting.get("message"), pod_name))
    return None


def _last_end(container: Object) -> Object:
    """Return how the container's last process ended, whether or not another one has begun."""
    states = (container.get("state") or {}, container.get("lastState") or {})
    found: Object = next((state["terminated"] for state in states if state.get("terminated")), {})
    return found


def _last_words(container: Object, ended: Object) -> str:
    """Return the reason that a worker has left for its end; what others leave may be another text each time."""
    words = str(ended.get("message") or "") if container.get("name") == CONTAINER else ""
    return "; ".join(words.splitlines())[:_SENTENCE]


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
