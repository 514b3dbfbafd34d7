"""What keeps a pool's pods from running, named once and in the same words while it does."""

from datetime import timedelta
from typing import Any

import pytest

from docgrid_operator.kinds import Object
from docgrid_operator.obstacles import find_obstacle, find_replica_failure, next_look
from support.pods import NOW, POD_NAME, build_pod, terminated, waiting

CRASHED = terminated(1, "Error")
NO_COMMAND = 'exec: "docgrid-worker": executable file not found in $PATH'
UNSCHEDULABLE = [
    {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/5 nodes are available: 5 Insufficient memory.",
    }
]


@pytest.mark.parametrize(
    ("pod", "reason", "fragment"),
    [
        (build_pod(state=waiting("ErrImageNeverPull", "not present")), "ErrImageNeverPull", "not present"),
        (build_pod(state=waiting("InvalidImageName", "bad")), "InvalidImageName", "bad"),
        (build_pod(state=waiting("ErrImagePull", "401")), "ImagePullBackOff", "docgrid:2 can not be pulled"),
        (build_pod(state=waiting("ImagePullBackOff")), "ImagePullBackOff", "docgrid:2 can not be pulled"),
        (
            build_pod(state=waiting("CreateContainerConfigError", 'secret "database" not found')),
            "CreateContainerConfigError",
            'secret "database" not found',
        ),
        (
            build_pod(state=waiting("CreateContainerError")),
            "CreateContainerError",
            "the kubelet gives no message",
        ),
        (build_pod(state=waiting("RunContainerError", NO_COMMAND)), "RunContainerError", NO_COMMAND),
        (
            build_pod(state=waiting("CrashLoopBackOff"), last_state=CRASHED),
            "CrashLoopBackOff",
            "the worker ended (exit code 1, Error) and is started again: `kubectl logs -p -c worker`",
        ),
        (
            build_pod(last_state=terminated(75, "Error", message="the database refuses the password")),
            "CrashLoopBackOff",
            "(exit code 75, Error) and is started again: the database refuses the password",
        ),
        (
            build_pod(last_state=terminated(2, "Error", message="A=0: must be 1\nB is not set")),
            "CrashLoopBackOff",
            "is started again: A=0: must be 1; B is not set",
        ),
        (  # another image's words may be new each time
            build_pod(last_state=terminated(1, "Error", message="at 12:00:01"), container="tunnel"),
            "CrashLoopBackOff",
            "is started again: `kubectl logs -p -c tunnel` says why",
        ),
        (
            build_pod(
                state=waiting("CrashLoopBackOff"), last_state=terminated(1, "Error"), container="tunnel"
            ),
            "CrashLoopBackOff",
            "the container tunnel ended (exit code 1, Error)",
        ),
        (
            build_pod(last_state=terminated(137, "OOMKilled")),
            "CrashLoopBackOff",
            "exit code 137, OOMKilled",
        ),
        (
            build_pod(conditions=UNSCHEDULABLE, phase="Pending"),
            "Unschedulable",
            "no node takes a worker's pod",
        ),
        (
            build_pod(state=waiting("ImagePullBackOff"), container="migrate", init=True),
            "ImagePullBackOff",
            "can not be pulled",
        ),
    ],
)
def test_what_needs_a_person_is_named_with_what_to_do(pod: Object, reason: str, fragment: str) -> None:
    found = find_obstacle([build_pod(ready=True), pod], now=NOW)
    assert found is not None
    assert found.reason == reason
    assert fragment in found.message


@pytest.mark.parametrize(
    "pod",
    [
        build_pod(),
        build_pod(ready=True, last_state=CRASHED),
        build_pod(ready=True, last_state=terminated(128, "StartError", message=NO_COMMAND)),
        build_pod(state=waiting("ContainerCreating"), phase="Pending"),
        build_pod(state=waiting("PodInitializing"), phase="Pending"),
        build_pod(state=terminated(0, "Completed"), ready=True, init=True),
        build_pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]),
        build_pod(state=waiting("ImagePullBackOff"), deletion_timestamp="2026-03-01T12:00:00Z"),
        build_pod(state=terminated(137, "Error"), phase="Failed"),
        {"metadata": {"name": POD_NAME}},
    ],
)
def test_what_passes_by_itself_is_no_obstacle(pod: Object) -> None:
    assert find_obstacle([pod], now=NOW) is None


def waits_for_volumes(seconds: float, *, made: str = "False", placed: str = "True", **more: Any) -> Object:
    """Return a pod that has a node, and for so many seconds no volumes or network."""
    since = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {"type": "PodScheduled", "status": placed, "lastTransitionTime": since},
        {"type": "PodReadyToStartContainers", "status": made, "lastTransitionTime": since},
    ]
    state = waiting("ContainerCreating")
    return build_pod(**{"state": state, "phase": "Pending", "conditions": conditions, **more})


def test_a_pod_that_waits_for_its_volumes_is_told_with_what_it_mounts_once_that_is_long() -> None:
    projected = {"projected": {"sources": [{"secret": {"name": "tls"}}, {"configMap": {"name": "settings"}}]}}
    volumes = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "ca", "secret": {"secretName": "ca"}},
        {"name": "settings", "configMap": {"name": "settings"}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}},
        {"name": "more", **projected},
    ]
    found = find_obstacle([waits_for_volumes(31, volumes=volumes)], now=NOW)
    assert found == find_obstacle([waits_for_volumes(400, volumes=volumes[::-1])], now=NOW)
    assert found is not None
    assert found.reason == "ContainerCreating"
    mounted = "ConfigMap settings, PersistentVolumeClaim cache, Secret ca, Secret tls"
    assert f"more than 30 s (it mounts {mounted}): `kubectl describe pod`" in found.message
    bare = find_obstacle([waits_for_volumes(31)], now=NOW)
    assert bare is not None
    assert "more than 30 s: `kubectl" in bare.message


def test_when_to_look_again_is_known_for_the_pod_that_waits_longest() -> None:
    pods = [waits_for_volumes(12), waits_for_volumes(5), waits_for_volumes(100), build_pod()]
    assert next_look(pods, now=NOW) == 18
    assert find_obstacle(pods[:2], now=NOW + timedelta(seconds=18)) is None
    assert find_obstacle(pods[:2], now=NOW + timedelta(seconds=19)) is not None
    assert next_look([build_pod(), waits_for_volumes(100)], now=NOW) is None


@pytest.mark.parametrize(
    "pod",
    [
        waits_for_volumes(29),
        waits_for_volumes(100, made="True"),  # its image is pulled, however long that takes
        waits_for_volumes(100, placed="False"),
        waits_for_volumes(100, phase="Running"),  # its sandbox is made anew
        waits_for_volumes(100, deletion_timestamp="2026-03-01T12:00:00Z"),
    ],
)
def test_a_pod_that_gets_on_does_not_wait_for_volumes(pod: Object) -> None:
    assert find_obstacle([pod], now=NOW) is None


def test_of_many_obstacles_the_worst_is_named_whatever_their_order() -> None:
    pods = [
        build_pod("a", state=waiting("CrashLoopBackOff"), last_state=CRASHED),
        build_pod("b", conditions=UNSCHEDULABLE, phase="Pending"),
        build_pod("c", state=waiting("ImagePullBackOff")),
    ]
    assert (
        find_obstacle(pods, now=NOW) == find_obstacle(pods[::-1], now=NOW) == find_obstacle(pods[2:], now=NOW)
    )


@pytest.mark.parametrize(
    "steps",
    [
        [build_pod(state=waiting("ErrImagePull", "401")), build_pod(state=waiting("ImagePullBackOff", "5m"))],
        [
            build_pod(state=CRASHED),
            build_pod(state=waiting("CrashLoopBackOff", "back-off 10s"), last_state=CRASHED),
            build_pod(last_state=CRASHED),
            build_pod(state=CRASHED, last_state=CRASHED),
            build_pod(state=waiting("CrashLoopBackOff", "back-off 20s"), last_state=CRASHED),
        ],
        [  # killed by its liveness probe, again and again: it drains and says 0
            build_pod(state=waiting("CrashLoopBackOff"), last_state=terminated(0, "Completed")),
            build_pod(last_state=terminated(0, "Completed")),
        ],
        [
            build_pod(
                state=waiting("RunContainerError", f"failed to start container {number * 64}: {NO_COMMAND}"),
                last_state=terminated(128, "StartError", message=NO_COMMAND),
            )
            for number in "12"
        ]
        + [
            build_pod(
                state=waiting("CrashLoopBackOff"),
                last_state=terminated(128, "StartError", message=NO_COMMAND),
            )
        ],
        [
            build_pod(
                name,
                state=waiting(
                    "CreateContainerError", f'name "/k8s_worker_{name}_{uid}_0" is in use by "{id_}"'
                ),
            )
            for name, uid, id_ in (
                ("pool-6d4f9c-x7k2p", "0b6f2c7e-91c3-4c4e-8f43-2d6f2a3b9c11", "8f14e45fceea167a"),
                ("pool-6d4f9c-9wq4z", "5f0c9a52-6f1e-4c7f-9a55-0d5b9d1f7a10", "c9f0f895fb98ab91"),
            )
        ],
    ],
    ids=["image", "crash", "clean end", "no command", "ids"],
)
def test_an_obstacle_keeps_its_words_through_the_kubelets_tries(steps: list[Object]) -> None:
    found = {find_obstacle([pod], now=NOW) for pod in steps}
    assert len(found) == 1
    assert None not in found


def test_a_process_that_never_began_has_no_log_to_look_at() -> None:
    found = find_obstacle([build_pod(last_state=terminated(128, "StartError", message=NO_COMMAND))], now=NOW)
    assert found is not None
    assert (found.reason, found.message) == ("RunContainerError", NO_COMMAND)


def test_a_long_message_is_cut() -> None:
    found = find_obstacle([build_pod(state=waiting("RunContainerError", "x " * 1000))], now=NOW)
    assert found is not None
    assert len(found.message) == 500


@pytest.mark.parametrize("name", ["pool-6d4f9c-x7k2p", "pool-6d4f9c-9wq4z"])
def test_why_pods_can_not_be_created_is_told_without_the_pods_name(name: str) -> None:
    message = f'pods "{name}" is forbidden: exceeded quota: small, requested: pods=1, limited: pods=2'
    condition = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": message}
    found = find_replica_failure({"conditions": [{"type": "Available", "status": "True"}, condition]})
    assert found is not None
    assert found.reason == "FailedCreate"
    assert found.message == ("a pod is forbidden: exceeded quota: small, requested: pods=1, limited: pods=2")


def test_a_failure_to_create_pods_that_is_over_is_none() -> None:
    over = {"type": "ReplicaFailure", "status": "False", "reason": "FailedCreate", "message": "was"}
    assert find_replica_failure({"conditions": [over]}) is None
    assert find_replica_failure({}) is None
