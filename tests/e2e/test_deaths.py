"""A busy worker dies in every way there is: its job goes on elsewhere, at the price that the end of its process has."""

import signal

import pytest

from support import tables
from support.backing import POSTGRES
from support.chaos import patiently
from support.races import wait_until
from support.release import OPERATOR, Release

pytestmark = pytest.mark.timeout(240)

QUICK = {"interval": "1s", "deadThreshold": "4s"}
"""For ends of which nobody hears."""


def test_a_pod_deleted_by_force_costs_its_job_no_retry(release: Release) -> None:
    release.start_workers(2)
    job_id, pod = release.run_one()
    release.delete_by_force(pod)
    release.wait_for_another(job_id)
    assert release.holder(job_id) != pod
    release.finish(job_id)
    assert release.retries(job_id) == 0
    assert release.end_of(pod) == ("STOPPED", "Deleted")


def test_a_deleted_pod_gives_its_job_back_while_it_drains(release: Release) -> None:
    release.start_workers(2, shutdownGracePeriod="1s")
    job_id, pod = release.run_one()
    release.kubectl("delete", "pod", pod, "--wait=false")
    release.wait_for_another(job_id)
    release.finish(job_id)
    assert release.retries(job_id) == 0
    assert release.end_of(pod) == ("STOPPED", "Stopped")


def test_a_killed_process_costs_its_job_a_retry(release: Release) -> None:
    release.start_workers(2)
    job_id, pod = release.run_one()
    release.signal(pod, signal.SIGKILL)
    release.wait_for_another(job_id)
    release.finish(job_id)
    assert release.retries(job_id) == 1
    assert release.end_of(pod) == ("DEAD", "Error")
    # The container starts again in its pod.
    release.wait_until_ready(2)


def test_a_process_that_the_kernel_kills_for_its_memory_is_told_as_such(release: Release) -> None:
    release.start_workers(2, resources={"limits": {"memory": "256Mi"}})
    job_id, pod = release.run_one()
    release.exhaust_memory(pod)
    release.wait_for_another(job_id)
    release.finish(job_id)
    assert release.retries(job_id) == 1
    assert release.end_of(pod) == ("DEAD", "OOMKilled")
    told = release.kubectl(
        "get", "events", "--field-selector=reason=WorkerDead", "--output=jsonpath={..message}"
    )
    assert f"the worker in pod {pod} ended: OOMKilled" in told.out


def test_a_frozen_process_loses_its_job_and_can_not_complete_it_when_it_wakes(release: Release) -> None:
    release.start_workers(2, heartbeat=QUICK)
    job_id, pod = release.run_one()
    release.signal(pod, signal.SIGSTOP)
    release.wait_for_another(job_id)
    assert release.end_of(pod) == ("DEAD", "HeartbeatOverdue")
    release.provider.gate.set()
    release.signal(pod, signal.SIGCONT)
    release.finish(job_id)
    assert release.retries(job_id) == 1
    assert [attempt.status for attempt in tables.attempts(release.db, job_id)] == ["FAILED", "SUCCESS"]


def test_jobs_outlive_the_database_s_crash(release: Release) -> None:
    release.start_workers(2)
    busy, _ = release.run_one()
    waiting = [release.documents.ingest("waits") for _ in range(4)]
    release.backing.crash(POSTGRES)
    release.provider.gate.set()
    patiently(lambda: release.documents.wait_indexed(busy, *waiting))
    assert release.retries(busy) <= 1


def test_jobs_are_recovered_while_there_is_no_operator(release: Release) -> None:
    release.start_workers(2, heartbeat=QUICK)
    release.kubectl("scale", OPERATOR, "--replicas=0")
    release.kubectl(
        "wait", "--for=delete", "pod", "--selector=app.kubernetes.io/component=operator", "--timeout=60s"
    )
    try:
        job_id, pod = release.run_one()
        release.signal(pod, signal.SIGKILL)
        release.wait_for_another(job_id)
        release.finish(job_id)
        assert release.retries(job_id) == 1
        assert release.end_of(pod)[0] == "DEAD"
        # Nobody hears of a new size before it is back.
        release.kubectl("scale", "indexingworker", "pool", "--replicas=1")
        release.finish(release.documents.ingest("indexed without an operator"))
        assert len(release.pods()) == 2
    finally:
        release.kubectl("scale", OPERATOR, "--replicas=1")
    release.wait_for_operator()
    release.wait_until_ready(1)


def test_an_operator_that_is_killed_comes_back_and_goes_on(release: Release) -> None:
    release.start_workers(2)
    operator = release.operator_pod()
    release.signal(operator, signal.SIGKILL)
    job_id, pod = release.run_one()
    release.delete_by_force(pod)
    wait_until(lambda: len(tables.attempts(release.db, job_id)) > 1)
    release.finish(job_id)
    assert release.retries(job_id) == 0
