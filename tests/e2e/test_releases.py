"""A release is upgraded, rolled back and removed while its workers work: no job is lost, nothing of it is left."""

from pathlib import Path

import pytest

from docgrid_core.jobs import JobId
from docgrid_core.testing.invariants import violations
from support.chart import CHART, Object
from support.cluster.node_cluster import NodeCluster
from support.races import wait_until
from support.release import OPERATOR, RELEASE, Release

pytestmark = pytest.mark.timeout(420)

_OURS = "deployments,replicasets,pods,serviceaccounts,roles,rolebindings,poddisruptionbudgets,indexingjobs"


def test_a_new_image_reaches_operator_and_workers_without_a_retry(
    bare_release: Release, node_cluster: NodeCluster
) -> None:
    release = bare_release
    release.install()
    release.add_model()
    release.start_workers(2)
    jobs = under_load(release)
    release.image = f"{release.image}-next"
    for node in node_cluster.nodes:
        node.ctr("images", "tag", "--force", release.image.removesuffix("-next"), release.image)
    release.upgrade()
    wait_until(lambda: {image_of(pod) for pod in release.pods()} == {release.image})
    release.wait_until_ready(2)
    release.finish(*jobs)
    assert sum(map(release.retries, jobs)) == 0
    assert violations(release.db) == []


def test_a_chart_is_upgraded_and_rolled_back_without_losing_a_job(
    bare_release: Release, tmp_path: Path
) -> None:
    release = bare_release
    release.install(chart=older_chart(release, tmp_path))
    release.add_model()
    release.start_workers(2)
    jobs = under_load(release)
    release.upgrade(log={"level": "DEBUG"})
    jobs += under_load(release)
    release.helm("rollback", RELEASE, "1", "--wait", "--timeout=80s")
    release.finish(*jobs)
    assert sum(map(release.retries, jobs)) == 0
    assert "0.0.1" in release.helm("list").out
    assert violations(release.db) == []


def test_an_uninstall_leaves_pools_of_others_at_work_and_nothing_of_its_own(bare_release: Release) -> None:
    release = bare_release
    release.install()
    release.add_model()
    release.start_workers(1)
    release.finish(release.documents.ingest("while there is a release"))
    wait_until(lambda: release.kubectl("get", "indexingjobs", "--output=name").out != "")
    release.helm("uninstall", RELEASE, "--wait", "--timeout=60s")
    release.finish(release.documents.ingest("without a release"))
    release.kubectl("delete", "indexingworkers", "--all")
    wait_until(lambda: left_over(release) == set())


def test_a_namespace_can_be_deleted_when_its_operator_is_gone(bare_release: Release) -> None:
    release = bare_release
    release.install()
    release.add_model()
    release.start_workers(1, disruptionBudget={"minAvailable": 1})
    release.kubectl("delete", OPERATOR, "--wait=true")
    release.kubectl("delete", "namespace", release.namespace, "--wait=true", "--timeout=80s")


def under_load(release: Release) -> list[JobId]:
    """Let each embedding take a moment, and ingest documents; return their jobs."""
    release.provider.latency = 0.5
    return [release.documents.ingest(f"a text, number {number}") for number in range(10)]


def image_of(pod: Object) -> str:
    """Return the image of a pod's first container."""
    return str(pod["spec"]["containers"][0]["image"])


def left_over(release: Release) -> set[str]:
    """Return the names of what is left of a release, without what every namespace has."""
    found = release.kubectl("get", _OURS, "--output=name").out.split()
    return set(found) - {"serviceaccount/default"}


def older_chart(release: Release, folder: Path) -> Path:
    """Return the chart as an earlier version of itself, packed."""
    release.helm("package", str(CHART), "--version=0.0.1", f"--destination={folder}")
    return folder / "docgrid-0.0.1.tgz"
