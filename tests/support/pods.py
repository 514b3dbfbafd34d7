"""Pods of a pool for tests of the operator's pure parts: what a kubelet reports of them."""

from datetime import UTC, datetime
from typing import Any

from docgrid_operator.kinds import Object

POD_NAME = "pool-6d4f9c-x7k2p"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def build_pod(
    name: str = POD_NAME,
    *,
    container: str = "worker",
    state: Object | None = None,
    last_state: Object | None = None,
    ready: bool = False,
    init: bool = False,
    phase: str = "Running",
    conditions: list[Object] | None = None,
    deletion_timestamp: str = "",
    volumes: list[Object] | None = None,
) -> Object:
    """Return a pod of one container, which is an init container if `init`."""
    status = {
        "name": container,
        "image": "docgrid:2",
        "ready": ready,
        "state": state or {"running": {}},
        "lastState": last_state or {},
    }
    return {
        "metadata": {
            "name": name,
            **({"deletionTimestamp": deletion_timestamp} if deletion_timestamp else {}),
        },
        "spec": {"volumes": volumes or []},
        "status": {
            "phase": phase,
            "conditions": conditions or [],
            "initContainerStatuses" if init else "containerStatuses": [status],
        },
    }


def waiting(reason: str, message: str = "") -> Object:
    """Return the state of a container that waits."""
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def terminated(exit_code: int, reason: str, **more: Any) -> Object:
    """Return the state of a container whose process has ended."""
    return {"terminated": {"exitCode": exit_code, "reason": reason, **more}}
