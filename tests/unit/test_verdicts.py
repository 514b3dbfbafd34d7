"""The table of worker liveness, row by row: what a pod says of the process that ran in it."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from docgrid_core.jobs import StopReason
from docgrid_operator.kinds import Object
from docgrid_operator.verdicts import STATUS_LAG, LastSeen, judge, see

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
STARTED = NOW - timedelta(minutes=5)
ENDED = NOW - timedelta(seconds=3)


def pod(*, metadata: Object | None = None, **status: Any) -> Object:
    return {"metadata": {"uid": "p", **(metadata or {})}, "status": status}


def container(**state: Any) -> list[Object]:
    return [{"name": "sidecar", "state": {"running": {}}}, {"name": "worker", **state}]


def terminated(exit_code: int, reason: str = "Error", ended: datetime = ENDED) -> Object:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": ended.isoformat()}}


def disruption(reason: str) -> list[Object]:
    return [{"type": "DisruptionTarget", "status": "True", "reason": reason}]


def deletion(*, asked: datetime, grace: int = 45) -> Object:
    return {
        "deletionTimestamp": (asked + timedelta(seconds=grace)).isoformat(),
        "deletionGracePeriodSeconds": grace,
    }


def verdict(
    seen: Object | None, *, started_at: datetime = STARTED, last: LastSeen | None = None
) -> StopReason | None:
    return judge(seen, started_at=started_at, now=NOW, container="worker", last_seen=last or LastSeen())


RUNNING = container(state={"running": {}})
OOM = container(state=terminated(137, "OOMKilled"))
CRASHED = container(state=terminated(1))

ENDED_PODS = {
    "killed for memory": (pod(containerStatuses=OOM), StopReason.OOM_KILLED),
    "killed for memory while it was being deleted": (
        pod(metadata=deletion(asked=ENDED - timedelta(seconds=5)), containerStatuses=OOM),
        StopReason.OOM_KILLED,
    ),
    "crashed": (pod(containerStatuses=CRASHED), StopReason.ERROR),
    "crashed, waits to be started again": (
        pod(
            containerStatuses=container(
                state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=terminated(139)
            )
        ),
        StopReason.ERROR,
    ),
    "crashed before the pod was deleted": (
        pod(metadata=deletion(asked=ENDED + timedelta(seconds=2)), containerStatuses=CRASHED),
        StopReason.ERROR,
    ),
    "killed at the end of a deletion's grace period": (
        pod(
            metadata=deletion(asked=ENDED - timedelta(seconds=45)),
            containerStatuses=container(state=terminated(137)),
        ),
        StopReason.DELETED,
    ),
    "drained": (pod(containerStatuses=container(state=terminated(0, "Completed"))), StopReason.STOPPED),
    "fenced": (pod(containerStatuses=container(state=terminated(75))), StopReason.STOPPED),
    "evicted through the API": (
        pod(
            conditions=disruption("EvictionByEvictionAPI"), containerStatuses=container(state=terminated(137))
        ),
        StopReason.EVICTED,
    ),
    "evicted by the kubelet": (
        pod(phase="Failed", reason="Evicted", conditions=disruption("TerminationByKubelet")),
        StopReason.EVICTED,
    ),
    "evicted, with nothing but the phase to tell": (
        pod(phase="Failed", reason="Evicted"),
        StopReason.EVICTED,
    ),
    "preempted": (
        pod(
            conditions=disruption("PreemptionByScheduler"), containerStatuses=container(state=terminated(143))
        ),
        StopReason.PREEMPTED,
    ),
    "drained by a taint": (
        pod(
            conditions=disruption("DeletionByTaintManager"),
            containerStatuses=container(state=terminated(143)),
        ),
        StopReason.DRAINED,
    ),
    "cleared away with its node, its container's last state being that it runs": (
        pod(
            phase="Failed",
            conditions=disruption("DeletionByPodGC"),
            containerStatuses=container(state={"running": {}}),
        ),
        StopReason.NODE_LOST,
    ),
    "of unknown status, its node came back": (
        pod(containerStatuses=container(state=terminated(137, "ContainerStatusUnknown"))),
        StopReason.NODE_LOST,
    ),
    "failed as a whole": (pod(phase="Failed"), StopReason.ERROR),
    "gone": (None, StopReason.DELETED),
}

LIVE_PODS = {
    "running": pod(phase="Running", containerStatuses=RUNNING),
    "being created": pod(
        phase="Pending", containerStatuses=container(state={"waiting": {"reason": "ContainerCreating"}})
    ),
    "without a status": {"metadata": {"uid": "p"}},
    "being deleted, still running": pod(metadata=deletion(asked=ENDED), containerStatuses=RUNNING),
    "evicted, still running": pod(conditions=disruption("EvictionByEvictionAPI"), containerStatuses=RUNNING),
    "started again": pod(containerStatuses=container(state={"running": {}}, lastState=terminated(1))),
    "of which only a sidecar ended": pod(containerStatuses=[{"name": "sidecar", "state": terminated(1)}]),
    "whose earlier process ended": pod(
        containerStatuses=container(state=terminated(1, ended=STARTED - timedelta(seconds=1)))
    ),
}


@pytest.mark.parametrize("case", ENDED_PODS)
def test_the_end_of_a_process_is_told_from_its_pod(case: str) -> None:
    seen, reason = ENDED_PODS[case]
    assert verdict(seen) is reason


@pytest.mark.parametrize("case", LIVE_PODS)
def test_a_process_that_may_live_is_left_to_its_heartbeats(case: str) -> None:
    assert verdict(LIVE_PODS[case]) is None


@pytest.mark.parametrize("case", ENDED_PODS)
def test_a_process_that_has_just_registered_is_not_judged(case: str) -> None:
    just_now = NOW - STATUS_LAG + timedelta(milliseconds=1)
    assert verdict(ENDED_PODS[case][0], started_at=just_now) is None


def test_a_pod_that_went_with_its_node_is_remembered_as_lost() -> None:
    last = see(pod(conditions=disruption("DeletionByPodGC")))
    assert verdict(None, last=last) is StopReason.NODE_LOST
    assert see(LIVE_PODS["running"]) == LastSeen()
