"""The stand-in node: pods are real processes, and end, fail and are reported as a kubelet does it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.cluster.api import Object
from support.cluster.control_plane import ControlPlane
from support.cluster.fixtures import stand_in_node
from support.cluster.kubectl import Kubectl
from support.cluster.pod_environment import expand
from support.cluster.pod_status import container_status, report_status
from support.cluster.stand_in_node import StandInNode
from support.races import wait_until

SLEEP = ["sleep", "1000"]
SERVE = "import http.server, os; h = os.environ['DOCGRID_WORKER_HEALTH_HOST']; print(os.environ, flush=True);"


def test_a_deployment_runs_real_processes_and_its_deletion_ends_them(
    node: StandInNode, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(deployment(replicas=2, command=SLEEP))
    kubectl("rollout", "status", "deployment/it", "--timeout=60s")
    pids = [node.pid_of(pod["metadata"]["name"], namespace) for pod in pods(kubectl)]
    assert [psutil.Process(pid).cmdline()[-1] for pid in pids] == ["1000", "1000"]
    assert len({pod["status"]["podIP"] for pod in pods(kubectl)}) == 2
    kubectl("delete", "deployment", "it")
    wait_until(lambda: not pods(kubectl))
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_process_that_crashes_is_started_again_and_its_end_is_told(
    node: StandInNode, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(pod(command=SLEEP))
    first = wait_for_pid(node, namespace)
    node.kill("it", namespace)
    wait_until(lambda: container(kubectl).get("restartCount") == 1)
    assert wait_for_pid(node, namespace) != first
    ended = container(kubectl)["lastState"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "Error")
    assert container(kubectl)["state"].keys() == {"running"}


def test_a_process_that_keeps_failing_waits_longer_each_time(node: StandInNode, kubectl: Kubectl) -> None:
    kubectl.apply(pod(command=["sh", "-c", "exit 3"]))
    wait_until(lambda: waits_for(kubectl) == "CrashLoopBackOff")
    assert container(kubectl)["lastState"]["terminated"]["exitCode"] == 3
    assert phase(kubectl) == "Running"


def test_a_process_killed_for_its_memory_is_reported_as_such(
    node: StandInNode, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(pod(command=SLEEP, restartPolicy="Never"))
    wait_for_pid(node, namespace)
    node.report_oom("it", namespace)
    wait_until(lambda: phase(kubectl) == "Failed")
    ended = container(kubectl)["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_a_process_that_is_done_makes_its_pod_succeed(node: StandInNode, kubectl: Kubectl) -> None:
    kubectl.apply(pod(command=["true"], restartPolicy="OnFailure"))
    wait_until(lambda: phase(kubectl) == "Succeeded")
    assert container(kubectl)["state"]["terminated"]["reason"] == "Completed"


def test_a_missing_secret_is_told_and_the_pod_starts_when_it_is_there(
    node: StandInNode, kubectl: Kubectl, namespace: str
) -> None:
    wanted = {"name": "URL", "valueFrom": {"secretKeyRef": {"name": "database", "key": "url"}}}
    kubectl.apply(pod(command=["sh", "-c", "echo $URL; sleep 1000"], env=[wanted]))
    wait_until(lambda: waits_for(kubectl) == "CreateContainerConfigError")
    assert container(kubectl)["state"]["waiting"]["message"] == 'secret "database" not found'
    kubectl("create", "secret", "generic", "database", "--from-literal=other=x")
    missing = f"couldn't find key url in Secret {namespace}/database"
    wait_until(lambda: container(kubectl)["state"]["waiting"]["message"] == missing)
    assert phase(kubectl) == "Pending"
    kubectl("patch", "secret", "database", '--patch={"stringData": {"url": "postgresql://there"}}')
    wait_until(lambda: node.log_of("it", namespace) == "postgresql://there\n")


def test_a_container_sees_what_its_environment_refers_to(
    node: StandInNode, kubectl: Kubectl, namespace: str
) -> None:
    kubectl("create", "configmap", "settings", "--from-literal=COLOR=red")
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "ROLE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['role']"}}},
        {"name": "WHOLE", "value": "$(COLOR)/$(NAME)/$$(NAME)/$(NONE)"},
    ]
    script = "echo $NAME $NODE $ROLE $WHOLE $1; sleep 1000"
    source = [{"configMapRef": {"name": "settings"}}]
    kubectl.apply(pod(command=["sh", "-c", script, "sh"], args=["$(COLOR)"], env=env, envFrom=source))
    wait_for_pid(node, namespace)
    told = f"it {node.name} worker red/it/$(NAME)/$(NONE) red\n"
    wait_until(lambda: node.log_of("it", namespace) == told)
    assert expand("$$", {}) == "$"


def test_a_pod_is_ready_when_its_own_address_says_so(
    node: StandInNode, kubectl: Kubectl, namespace: str
) -> None:
    code = f"{SERVE} http.server.test(http.server.SimpleHTTPRequestHandler, port=8080, bind=h)"
    probe = {"httpGet": {"path": "/ready", "port": "health"}, "periodSeconds": 1}
    ports = [{"name": "health", "containerPort": 8080}]
    kubectl.apply(pod(command=["python", "-c", code], ports=ports, readinessProbe=probe))
    pid = wait_for_pid(node, namespace)
    wait_until(lambda: "GET /ready" in node.log_of("it", namespace))
    assert not container(kubectl)["ready"]
    (Path(psutil.Process(pid).cwd()) / "ready").touch()
    kubectl("wait", "--for=condition=Ready", "pod/it", "--timeout=60s")


def test_a_deleted_pod_has_its_grace_and_a_force_deleted_one_has_none(
    node: StandInNode, kubectl: Kubectl, namespace: str
) -> None:
    stubborn = ["sh", "-c", "trap 'echo told' TERM; echo set; while :; do sleep 0.1; done"]
    kubectl.apply(pod(command=stubborn, terminationGracePeriodSeconds=600))
    pid = wait_for_pid(node, namespace)
    wait_until(lambda: "set" in node.log_of("it", namespace))
    kubectl("delete", "pod", "it", "--wait=false")
    wait_until(lambda: "told" in node.log_of("it", namespace))
    assert psutil.pid_exists(pid)
    assert phase(kubectl) == "Running"
    kubectl("delete", "pod", "it", "--force", "--grace-period=0")
    wait_until(lambda: not psutil.pid_exists(pid))


def test_a_process_that_outlasts_its_grace_is_killed(
    node: StandInNode, kubectl: Kubectl, namespace: str
) -> None:
    stubborn = ["sh", "-c", "trap '' TERM; echo set; while :; do sleep 0.1; done"]
    kubectl.apply(pod(command=stubborn, terminationGracePeriodSeconds=1))
    pid = wait_for_pid(node, namespace)
    wait_until(lambda: "set" in node.log_of("it", namespace))
    kubectl("delete", "pod", "it")
    assert not psutil.pid_exists(pid)


def test_a_node_that_vanishes_is_noticed_and_its_pods_go_elsewhere(
    control_plane: ControlPlane, node: StandInNode, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(deployment(replicas=1, command=SLEEP))
    wait_until(lambda: phases(kubectl) == ["Running"])
    [old] = pods(kubectl)
    pid = node.pid_of(old["metadata"]["name"], namespace)
    with stand_in_node(control_plane) as other:
        node.vanish(kill=False)
        wait_until(lambda: other.name in {each["spec"].get("nodeName") for each in pods(kubectl)})
        assert psutil.pid_exists(pid)
        assert old["metadata"]["name"] in {each["metadata"]["name"] for each in pods(kubectl)}
        node.come_back()
        wait_until(lambda: not psutil.pid_exists(pid))
        wait_until(lambda: len(pods(kubectl)) == 1)


def test_a_node_that_reports_nothing_lets_its_pods_run(
    node: StandInNode, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(pod(command=SLEEP))
    wait_until(lambda: phase(kubectl) == "Running")
    node.freeze_reports()
    os.kill(node.pid_of("it", namespace), signal.SIGKILL)
    wait_for_pid(node, namespace)
    assert container(kubectl)["restartCount"] == 0
    node.resume_reports()
    wait_until(lambda: container(kubectl)["restartCount"] == 1)


def test_a_status_can_be_reported_by_hand(
    control_plane: ControlPlane, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(pod(command=SLEEP, nodeName="nowhere"))
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    statuses = [container_status("worker", {"running": {}}, ready=True, restarts=1, last_state=ended)]
    report_status(control_plane.api, namespace, "it", phase="Running", containerStatuses=statuses)
    assert container(kubectl)["lastState"]["terminated"]["reason"] == "OOMKilled"


def test_who_asks_for_what_does_not_run_is_told_so(node: StandInNode, namespace: str) -> None:
    with pytest.raises(LookupError, match="no pod it of namespace"):
        node.pid_of("it", namespace)


def pod(**spec: Any) -> Object:
    """Return a pod `it`; fields of a container go there, the others into the pod's spec."""
    meta = {"name": "it", "labels": {"role": "worker"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": pod_spec(spec)}


def deployment(*, replicas: int, **spec: Any) -> Object:
    """Return a Deployment `it`."""
    labels = {"role": "worker"}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(spec)}
    body = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "it"}, "spec": body}


def pod_spec(given: dict[str, Any]) -> Object:
    """Return a pod's spec with one container `worker`."""
    of_pod = {"restartPolicy", "terminationGracePeriodSeconds", "nodeName"}
    worker = {key: value for key, value in given.items() if key not in of_pod}
    rest = {key: value for key, value in given.items() if key in of_pod}
    return {
        "terminationGracePeriodSeconds": 5,
        **rest,
        "containers": [{"name": "worker", "image": "none", **worker}],
    }


def pods(kubectl: Kubectl) -> list[Object]:
    """Return the pods of the test."""
    found: list[Object] = json.loads(kubectl("get", "pods", "-o", "json").out)["items"]
    return found


def phases(kubectl: Kubectl) -> list[str]:
    """Return the phases of the pods of the test."""
    return [each["status"]["phase"] for each in pods(kubectl)]


def phase(kubectl: Kubectl) -> str:
    """Return the phase of the test's only pod."""
    [found] = phases(kubectl)
    return found


def container(kubectl: Kubectl) -> Object:
    """Return the status of the test's only container; empty before the node told one."""
    [found] = pods(kubectl)
    status: Object = found["status"].get("containerStatuses", [{"state": {}}])[0]
    return status


def waits_for(kubectl: Kubectl) -> str:
    """Return the reason for which the test's only container waits."""
    return str(container(kubectl)["state"].get("waiting", {}).get("reason", ""))


def wait_for_pid(node: StandInNode, namespace: str) -> int:
    """Return the id of the process of the pod `it`, once it runs."""
    found: list[int] = []

    def runs() -> bool:
        try:
            found.append(node.pid_of("it", namespace))
        except LookupError:
            return False
        return True

    wait_until(runs)
    return found[0]
