"""Pools and releases change under load: pods roll once, sizes follow, nothing fails and nothing is lost."""

import pytest

from docgrid_core.jobs import JobId
from support.races import wait_until
from support.release import Release

pytestmark = pytest.mark.timeout(300)


def test_a_change_of_configuration_alone_rolls_the_pods_once(release: Release) -> None:
    release.start_workers(2)
    before = release.revisions()
    jobs = under_load(release, 12)
    release.apply_workers(2, concurrency=2)
    wait_until(lambda: release.revisions() != before)
    release.kubectl("rollout", "status", "deployment/pool", "--timeout=80s")
    release.finish(*jobs)
    assert len(release.revisions() - before) == 1
    assert spent(release, jobs) == 0


def test_a_pool_follows_its_size_under_load(release: Release) -> None:
    release.start_workers(0)
    jobs = under_load(release, 12)
    for size in (4, 1):
        release.kubectl("scale", "indexingworker", "pool", f"--replicas={size}")
        release.wait_until_ready(size)
        jobs += under_load(release, 6)
    release.finish(*jobs)
    assert spent(release, jobs) == 0


def test_a_suspended_pool_gives_its_jobs_back_and_takes_them_up_again(release: Release) -> None:
    release.start_workers(2, shutdownGracePeriod="1s")
    job_id, _ = release.run_one()
    release.kubectl(
        "patch", "indexingworker", "pool", "--type=merge", "--patch", '{"spec": {"suspend": true}}'
    )
    release.wait_until_ready(0)
    assert release.documents.status(job_id) == "PENDING"
    assert release.condition("Suspended")["status"] == "True"
    release.kubectl(
        "patch", "indexingworker", "pool", "--type=merge", "--patch", '{"spec": {"suspend": false}}'
    )
    release.wait_until_ready(2)
    release.finish(job_id)
    assert spent(release, [job_id]) == 0


def under_load(release: Release, count: int) -> list[JobId]:
    """Let each embedding take a moment, and ingest documents; return their jobs."""
    release.provider.latency = 0.3
    return [release.documents.ingest(f"a text of some words, number {number}") for number in range(count)]


def spent(release: Release, jobs: list[JobId]) -> int:
    """Return the retries that jobs have spent."""
    return sum(release.retries(job_id) for job_id in jobs)
