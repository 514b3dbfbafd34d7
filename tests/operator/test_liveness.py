"""Workers are marked by what their pods say, their jobs go on at once, and only a crash costs a retry.

The pods here have no node: their status is written by hand, as a kubelet would. Real processes in pods are in
`test_pools.py`.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from docgrid_core.jobs import JobId
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Execution
from docgrid_core.testing.invariants import violations
from docgrid_operator.kinds import Object
from support import tables
from support.operator_site import OperatorProcess, OperatorSite
from support.races import wait_until

LONG_AGO = "UPDATE worker_nodes SET started_at = now() - interval '1 minute'"


@dataclass(frozen=True)
class Busy:
    """A worker with a running job, and the pod that it runs in."""

    pod: str
    run: Execution

    @property
    def job_id(self) -> JobId:
        """The job that it runs."""
        assert self.run.document.job_id is not None
        return self.run.document.job_id


@pytest.fixture
def operator(site: OperatorSite) -> OperatorProcess:
    return site.start_ready()


def pool_uid(site: OperatorSite) -> str:
    """Return the uid of a pool without replicas: its pods are those that a test makes."""
    if site.get("indexingworker") is None:
        site.apply_pool(replicas=0)
    found = site.get("indexingworker")
    assert found is not None
    return str(found["metadata"]["uid"])


def make_pod(site: OperatorSite, name: str) -> str:
    """Create a pod of the pool, as its ReplicaSet would, and return its uid."""
    site.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"docgrid.dev/indexing-worker": "pool"}},
            "spec": {
                "containers": [{"name": "worker", "image": "docgrid:test"}],
                "schedulingGates": [{"name": "a/b"}],
            },
        }
    )
    pod = site.get("pod", name)
    assert pod is not None
    return str(pod["metadata"]["uid"])


def busy_worker(site: OperatorSite, name: str = "pod-1", *, old: bool = True) -> Busy:
    pool = pool_uid(site)
    worker = factories.register_worker(site.db, pod_uid=make_pod(site, name), pool_uid=pool)
    report(site, name, state={"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    busy = Busy(name, factories.run(site.db, worker=worker))
    if old:
        tables.change(site.db, LONG_AGO)
    return busy


def report(site: OperatorSite, name: str, **container: Object) -> None:
    """Write a pod's container status."""
    status = {"phase": "Running", "containerStatuses": [
        {"name": "worker", "image": "docgrid:test", "imageID": "", "ready": False, "restartCount": 0, **container}
    ]}  # fmt: skip
    site.kubectl(
        "patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status})
    )


def terminated(exit_code: int, reason: str) -> Object:
    return {"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": "2036-01-01T00:00:00Z"}}


def wait_for_end(site: OperatorSite, busy: Busy) -> tuple[str, str]:
    def is_over() -> bool:
        return tables.worker(site.db, busy.run.worker.id).status in {"STOPPED", "DEAD"}

    wait_until(is_over)
    wait_until(lambda: tables.job(site.db, busy.job_id).status == "PENDING")
    row = tables.worker(site.db, busy.run.worker.id)
    return row.status, row.stop_reason


def retries(site: OperatorSite, busy: Busy) -> int:
    return int(tables.job(site.db, busy.job_id).retry_count)


@pytest.mark.parametrize(
    ("exit_code", "reason", "marked", "spent"),
    [
        (137, "OOMKilled", ("DEAD", "OOMKilled"), 1),
        (1, "Error", ("DEAD", "Error"), 1),
        (0, "Completed", ("STOPPED", "Stopped"), 0),
        (75, "Error", ("STOPPED", "Stopped"), 0),
    ],
)
def test_a_container_that_ended_ends_its_worker_and_its_job_goes_on(
    site: OperatorSite,
    operator: OperatorProcess,
    exit_code: int,
    reason: str,
    marked: tuple[str, str],
    spent: int,
) -> None:
    busy = busy_worker(site)
    report(site, busy.pod, state=terminated(exit_code, reason))
    assert wait_for_end(site, busy) == marked
    assert retries(site, busy) == spent
    assert violations(site.db) == []


def test_a_pod_that_is_gone_costs_no_retry(site: OperatorSite, operator: OperatorProcess) -> None:
    busy = busy_worker(site)
    site.kubectl("delete", "pod", busy.pod, "--force", "--grace-period=0")
    assert wait_for_end(site, busy) == ("STOPPED", "Deleted")
    assert retries(site, busy) == 0


def test_a_pod_that_went_while_the_operator_was_down_is_found_by_a_list(site: OperatorSite) -> None:
    busy = busy_worker(site)
    site.kubectl("delete", "pod", busy.pod, "--force", "--grace-period=0")
    site.start_ready()
    assert wait_for_end(site, busy) == ("STOPPED", "Deleted")


def test_a_namespace_that_may_not_be_listed_holds_up_no_other(site: OperatorSite) -> None:
    operator = site.start_ready(operator_watch_namespaces="nowhere")  # to which it has no rights
    busy = busy_worker(site)
    site.kubectl("delete", "pod", busy.pod, "--force", "--grace-period=0")
    assert wait_for_end(site, busy) == ("STOPPED", "Deleted")
    wait_until(site.is_reconciled)
    operator.wait_for_rounds("resync")
    assert len(operator.lines("a namespace may not be listed and is left out")) == 1


def test_an_evicted_worker_is_told_from_a_deleted_one(site: OperatorSite, operator: OperatorProcess) -> None:
    busy = busy_worker(site)
    now = datetime.now(UTC).isoformat()  # without it the controller takes the condition for a stale one
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "lastTransitionTime": now,
    }
    patch = {"status": {"conditions": [condition]}}
    site.kubectl("patch", "pod", busy.pod, "--subresource=status", "--type=merge", "-p", json.dumps(patch))
    report(site, busy.pod, state=terminated(137, "Error"))
    assert wait_for_end(site, busy) == ("STOPPED", "Evicted")


def test_people_are_told_of_a_dead_worker_and_of_what_became_of_its_jobs(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    busy = busy_worker(site)
    report(site, busy.pod, state=terminated(137, "OOMKilled"))
    wait_for_end(site, busy)

    def told() -> str:
        return site.kubectl("describe", "indexingworker", "pool").out

    wait_until(lambda: "the worker in pod" in told() and "1 retried, 0 failed (OOMKilled)" in told())
    wait_until(lambda: "dead: 1" in site.kubectl("get", "indexingworker", "pool", "-o", "yaml").out)


def test_who_runs_who_has_just_begun_and_who_is_not_ours_is_left_alone(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    foreign = factories.register_worker(site.db, pod_uid="elsewhere", pool_uid="of another cluster")
    local = factories.register_worker(site.db)
    running = busy_worker(site, "runs")
    tables.change(site.db, LONG_AGO)
    young = busy_worker(site, "young", old=False)
    site.kubectl("delete", "pod", young.pod, "--force", "--grace-period=0")
    site.operators[0].wait_for_rounds("liveness", count=3)
    rows = [foreign, local, running.run.worker, young.run.worker]
    assert {tables.worker(site.db, worker.id).status for worker in rows} <= {"ACTIVE", "IDLE"}


def test_a_silent_worker_of_nobodys_pod_is_found_by_its_heartbeat(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    worker = factories.register_worker(site.db, pod_uid="elsewhere", pool_uid="of another cluster")
    busy = Busy("", factories.run(site.db, worker=worker))
    tables.change(site.db, "UPDATE worker_nodes SET dead_threshold = interval '1 second'")
    assert wait_for_end(site, busy) == ("DEAD", "HeartbeatOverdue")
    assert retries(site, busy) == 1


def test_two_operators_recover_a_job_once(site: OperatorSite, operator: OperatorProcess) -> None:
    site.start_ready()
    workers = [busy_worker(site, f"pod-{number}") for number in range(5)]
    for busy in workers:
        report(site, busy.pod, state=terminated(137, "OOMKilled"))
    for busy in workers:
        assert wait_for_end(site, busy) == ("DEAD", "OOMKilled")
        assert retries(site, busy) == 1
        assert tables.events(site.db, busy.job_id).count("RETRY") == 1
    assert violations(site.db) == []
