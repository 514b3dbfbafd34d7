"""Pools of real workers on a stand-in node: documents are indexed, whatever happens to pods, and nothing is lost.

Heartbeats and leases are left at their defaults, so that nothing but the operator's eye on pods explains a
recovery within seconds.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from docgrid_core.settings import DatabaseSettings, StorageSettings
from docgrid_core.testing.invariants import violations
from docgrid_operator.kinds import Object
from support import tables
from support.cluster.control_plane import ControlPlane
from support.cluster.stand_in_node import StandInNode
from support.fake_provider import FakeProvider
from support.operator_site import OperatorSite
from support.races import wait_until
from support.real_pools import Pools
from support.site import fake_site


@pytest.fixture
def pools(
    control_plane: ControlPlane,
    crds: None,
    namespace: str,
    node: StandInNode,
    database_settings: DatabaseSettings,
    storage_settings: StorageSettings,
    tmp_path: Path,
) -> Iterator[Pools]:
    with (
        FakeProvider() as provider,
        fake_site(database_settings, storage_settings, provider, folder=tmp_path) as documents,
    ):
        release = OperatorSite(control_plane, namespace, database_settings, folder=tmp_path)
        try:
            release.start_ready()
            yield Pools(release, documents, node, provider)
            provider.gate.set()
            release.kubectl("delete", "indexingworkers", "--all", "--wait=true")
            wait_until(lambda: release.kubectl("get", "pods", "-o", "name").out == "")
            assert violations(release.db) == []
        finally:
            release.close()


def patch(pools: Pools, change: str) -> None:
    pools.release.kubectl("patch", "indexingworker", "pool", "--type=merge", "-p", change)


def events(pools: Pools) -> str:
    return pools.release.kubectl("get", "events", "-o", "wide").out


def status_of(pools: Pools) -> Object:
    return dict((pools.release.get("indexingworker") or {}).get("status") or {})


def test_a_pool_indexes_documents_and_shows_it(pools: Pools) -> None:
    pools.start(2)
    jobs = [pools.documents.ingest(f"document number {number}") for number in range(10)]
    pools.documents.wait_indexed(*jobs)
    pools.release.wait_for_condition("Available", "True", "WorkersReady")
    pools.release.wait_for_condition("ModelReady", "True", "ModelActive")
    wait_until(lambda: status_of(pools)["workers"]["idle"] == 2)
    shown = "{.status.state}=INDEXED", *(f"indexingjob/job-{job_id}" for job_id in jobs)
    pools.release.kubectl("wait", f"--for=jsonpath={shown[0]}", *shown[1:], "--timeout=60s")


def test_a_busy_pod_that_is_deleted_by_force_costs_its_job_seconds_and_no_retry(pools: Pools) -> None:
    pools.start(2)
    job_id, pod = pools.run_one()
    pools.release.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    pools.wait_for_another(job_id)
    assert pools.holder(job_id) != pod
    pools.finish(job_id)
    assert pools.retries(job_id) == 0


def test_a_worker_that_is_killed_costs_its_job_seconds_and_one_retry(pools: Pools) -> None:
    pools.start(2)
    job_id, pod = pools.run_one()
    pools.node.kill(pod, pools.release.namespace, signal.SIGKILL)
    pools.wait_for_another(job_id)
    pools.finish(job_id)
    assert pools.retries(job_id) == 1
    assert pools.ends() <= {"Error", "Restarted"}


def test_a_worker_that_is_killed_for_memory_is_named_so(pools: Pools) -> None:
    pools.start(2)
    job_id, pod = pools.run_one()
    pools.node.report_oom(pod, pools.release.namespace)
    pools.wait_for_another(job_id)
    pools.finish(job_id)
    assert pools.retries(job_id) == 1
    assert pools.ends() <= {"OOMKilled", "Restarted"}  # a process that is back at once may be first to tell


def test_a_rollout_and_a_scale_down_under_load_cost_no_retry(pools: Pools) -> None:
    pools.start(2)
    pools.provider.latency = 0.2
    jobs = [pools.documents.ingest(f"document number {number}") for number in range(30)]
    patch(pools, '{"spec": {"chunking": {"overlap": 100}}}')
    pools.wait_until_ready(2)
    patch(pools, '{"spec": {"replicas": 1}}')
    pools.wait_until_ready(1)
    pools.finish(*jobs)
    assert sum(pools.retries(job_id) for job_id in jobs) == 0
    assert pools.ends() == {"Stopped"}


def test_a_suspended_pool_gives_its_jobs_back_and_takes_them_again(pools: Pools) -> None:
    pools.start(1, shutdownGracePeriod="1s")
    job_id, _pod = pools.run_one()
    patch(pools, '{"spec": {"suspend": true}}')
    wait_until(lambda: tables.job(pools.release.db, job_id).status == "PENDING")
    pools.wait_until_ready(0)
    patch(pools, '{"spec": {"suspend": false}}')
    pools.finish(job_id)
    assert pools.retries(job_id) == 0


def test_a_missing_secret_is_a_condition_that_heals_by_itself(pools: Pools) -> None:
    pools.apply(1)
    condition = pools.release.wait_for_condition("Available", "False", "CreateContainerConfigError")
    assert "database" in condition["message"]
    pools.make_database_secret()
    pools.release.wait_for_condition("Available", "True", "WorkersReady")


def test_a_model_that_is_missing_is_a_condition_that_says_what_to_do(pools: Pools) -> None:
    pools.apply(0, model={"name": "no-such-model"})
    condition = pools.release.wait_for_condition("ModelReady", "False", "ModelNotFound")
    assert "docgrid models add" in condition["message"]


def test_a_node_that_vanishes_costs_its_jobs_the_dead_threshold(pools: Pools) -> None:
    pools.start(1, heartbeat={"interval": "500ms", "deadThreshold": "3s"})
    job_id, _pod = pools.run_one()
    pools.node.vanish(kill=True)
    wait_until(lambda: tables.job(pools.release.db, job_id).status == "PENDING")
    wait_until(lambda: "WorkerDead" in events(pools))
    assert pools.ends() == {"HeartbeatOverdue"}
    assert pools.retries(job_id) == 1
    pools.node.come_back()
    pools.finish(job_id)
