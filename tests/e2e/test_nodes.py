"""Nodes are drained, cut off and lost: the jobs of their workers go on elsewhere, and what survives is fenced."""

from collections.abc import Iterator

import pytest

from docgrid_core.jobs import JobId
from support import tables
from support.cluster.node import Node
from support.cluster.node_cluster import NodeCluster
from support.races import wait_until
from support.release import Release

pytestmark = pytest.mark.timeout(300)

QUICK = {"interval": "1s", "deadThreshold": "4s"}
SPREAD = {
    "spec": {
        "containers": [{"name": "worker", "imagePullPolicy": "Never"}],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {"docgrid.dev/indexing-worker": "pool"}},
            }
        ],
    }
}


@pytest.fixture
def victim(node_cluster: NodeCluster) -> Iterator[Node]:
    """Yield the node that no server runs on; afterwards it is as before."""
    node = node_cluster.nodes[1]
    yield node
    node_cluster.revive(node)


def test_a_drain_moves_jobs_without_a_retry_and_keeps_the_budget(release: Release, victim: Node) -> None:
    release.start_workers(
        2, disruptionBudget={"minAvailable": 1}, podTemplate=SPREAD, shutdownGracePeriod="1s"
    )
    job_id, pod = run_one_on(release, victim)
    release.kubectl("drain", victim.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=80s")
    release.wait_for_another(job_id)
    release.finish(job_id)
    assert release.retries(job_id) == 0
    assert release.end_of(pod) == ("STOPPED", "Stopped")
    release.wait_until_ready(2)
    assert workers_on(release, victim) == []


def test_a_budget_holds_a_drain_back_until_another_worker_is_ready(release: Release, victim: Node) -> None:
    release.start_workers(2, disruptionBudget={"minAvailable": 2}, podTemplate=SPREAD)
    refused = release.kubectl.attempt(
        "drain", victim.name, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3s"
    )
    assert refused.code == 1
    assert "would violate the pod's disruption budget" in refused.err
    assert len(release.pods()) == 2


def test_the_jobs_of_a_node_that_loses_its_power_go_on_elsewhere(release: Release, victim: Node) -> None:
    release.start_workers(2, podTemplate=SPREAD, heartbeat=QUICK)
    job_id, pod = run_one_on(release, victim)
    victim.power_off()
    release.wait_for_another(job_id)
    release.finish(job_id)
    assert release.retries(job_id) == 1
    assert release.end_of(pod) == ("DEAD", "HeartbeatOverdue")
    # The pool is whole again on what is left.
    (survivor,) = {node.name for node in release.cluster.nodes} - {victim.name}
    wait_until(lambda: len(release.ready_pods(survivor)) == 2)


def test_a_worker_that_is_cut_off_can_not_complete_what_another_took(
    release: Release, victim: Node, node_cluster: NodeCluster
) -> None:
    release.start_workers(2, podTemplate=SPREAD, heartbeat=QUICK)
    job_id, pod = run_one_on(release, victim)
    node_cluster.cut_off(victim)
    release.wait_for_another(job_id)
    assert release.end_of(pod)[0] == "DEAD"
    release.provider.gate.set()
    node_cluster.reconnect(victim)
    release.finish(job_id)
    assert [attempt.status for attempt in tables.attempts(release.db, job_id)] == ["FAILED", "SUCCESS"]


def test_a_worker_goes_on_without_its_kubelet_until_its_pod_is_deleted_by_force(
    release: Release, victim: Node
) -> None:
    release.start_workers(2, podTemplate=SPREAD)
    job_id, pod = run_one_on(release, victim)
    # Nobody looks after it any more: its process works on, and so it is.
    victim.kill_programs()
    release.finish(job_id)
    assert [attempt.status for attempt in tables.attempts(release.db, job_id)] == ["SUCCESS"]
    # Its pod is gone: its process, which lives, is fenced.
    busy, pod = run_one_on(release, victim)
    release.delete_by_force(pod)
    release.wait_for_another(busy)
    release.finish(busy)
    assert release.end_of(pod) == ("STOPPED", "Deleted")
    assert release.retries(busy) == 0
    assert tables.attempts(release.db, busy)[-1].status == "SUCCESS"


def run_one_on(release: Release, node: Node) -> tuple[JobId, str]:
    """Ingest documents until a worker of the node holds one; return that job and its pod."""
    for _ in range(len(release.pods())):
        job_id, pod = release.run_one()
        if release.node_of(pod) is node:
            return job_id, pod
    raise AssertionError(f"no worker of {node.name} took a job")


def workers_on(release: Release, node: Node) -> list[str]:
    """Return the names of the pool's pods on a node."""
    return [pod["metadata"]["name"] for pod in release.pods() if pod["spec"].get("nodeName") == node.name]
