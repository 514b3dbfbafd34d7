"""The status of a pod, as a kubelet reports it: pure; and by hand, for tests that need no process.

`pod_runner` builds; tests of verdicts and conditions call `report_status` on pods that no node runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from support.cluster.api import STRATEGIC, Api, Object
from support.cluster.pod_container import Container, timestamp

_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")


def build_status(pod: Object, containers: Sequence[Container], address: str, before: Object) -> Object:
    """Return the status; what did not change since the one `before` keeps its times."""
    ready = all(container.is_ready for container in containers)
    over = all(container.is_over for container in containers) or (
        "deletionTimestamp" in pod["metadata"]
        and all(container.exit_code is not None for container in containers)
    )
    values = dict.fromkeys(_CONDITIONS[:2], True) | dict.fromkeys(_CONDITIONS[2:], ready)
    return {
        "phase": _phase(containers, over=over),
        "startTime": before.get("startTime") or timestamp(),
        "hostIP": "127.0.0.1",
        "hostIPs": [{"ip": "127.0.0.1"}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [_condition(kind, value, before) for kind, value in values.items()],
        "containerStatuses": [_container_status(container) for container in containers],
    }


def container_status(
    name: str,
    state: Mapping[str, Any],
    *,
    ready: bool = False,
    restarts: int = 0,
    last_state: Mapping[str, Any] | None = None,
) -> Object:
    """Return what a status says of one container, such as state={"running": {}}."""
    return {
        "name": name,
        "image": "stand-in",
        "imageID": "stand-in",
        "containerID": f"stand-in://{name}-{restarts}",
        "state": dict(state),
        "lastState": dict(last_state or {}),
        "ready": ready,
        "started": "running" in state,
        "restartCount": restarts,
    }


def report_status(api: Api, namespace: str, pod: str, **status: Any) -> Object:
    """Patch fields into the status of a pod that no node runs, such as phase="Running"; return the pod."""
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/status"
    return api.patch(path, {"status": status}, kind=STRATEGIC)


def _phase(containers: Sequence[Container], *, over: bool) -> str:
    if over:
        return "Failed" if any(container.exit_code for container in containers) else "Succeeded"
    begun = any("waiting" not in container.state or container.last_state for container in containers)
    return "Running" if begun else "Pending"


def _condition(kind: str, value: bool, before: Object) -> Object:
    status = str(value)
    earlier = next((each for each in before.get("conditions", []) if each["type"] == kind), None)
    if earlier is not None and earlier["status"] == status:
        return dict(earlier)
    reason = {} if value else {"reason": "ContainersNotReady"}
    return {"type": kind, "status": status, "lastTransitionTime": timestamp(), **reason}


def _container_status(container: Container) -> Object:
    status = container_status(
        container.name,
        container.state,
        ready=container.is_ready,
        restarts=container.restarts,
        last_state=container.last_state,
    )
    return {**status, "image": container.spec["image"], "started": container.is_started}
