"""What the end-to-end tests share: a cluster with two real nodes, the servers in it, a release of the chart.

All of it lives as long as the session; a test brings its own pool, and takes it away. When a test fails, its report
ends with what the cluster had to say.
"""

import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from docgrid_core.testing.invariants import violations
from support.backing import SERVERS, Backing
from support.cluster.binaries import Binaries
from support.cluster.components import Pace
from support.cluster.dump import dump
from support.cluster.fixtures import create_namespace, install_crds
from support.cluster.helm import Helm
from support.cluster.node_cluster import NodeCluster
from support.cluster.programs import NodePrograms
from support.image.build import Images
from support.release import Release, new_release

NODES = 2
PACE = Pace(node_grace=8, toleration=4)
_CLUSTER = pytest.StashKey[NodeCluster]()


@pytest.fixture(scope="session")
def node_cluster(
    cluster_binaries: Binaries, node_programs: NodePrograms, images: Images, pytestconfig: pytest.Config
) -> Iterator[NodeCluster]:
    """Yield a cluster with our kinds and two nodes that have the images."""
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder:
        cluster = NodeCluster(
            cluster_binaries,
            node_programs,
            Path(folder),
            nodes=NODES,
            pace=PACE,
            node_ports=[server.node_port for server in SERVERS],
        )
        cluster.start([images.pause.archive, images.docgrid.archive])
        install_crds(cluster.plane.kubectl())
        pytestconfig.stash[_CLUSTER] = cluster
        try:
            yield cluster
        finally:
            del pytestconfig.stash[_CLUSTER]
            cluster.stop()


@pytest.fixture(scope="session")
def backing(node_cluster: NodeCluster, images: Images) -> Backing:
    """Return PostgreSQL, S3 and the embedding model, which run in the cluster."""
    create_namespace(node_cluster.plane.api, "backing")
    made = Backing(node_cluster, node_cluster.plane.kubectl("backing"), images.backing)
    made.start()
    return made


@pytest.fixture(scope="session")
def shared_release(
    node_cluster: NodeCluster,
    backing: Backing,
    helm: Helm,
    images: Images,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Release]:
    """Yield an installed release, with a model."""
    folder = tmp_path_factory.mktemp("release")
    with new_release(node_cluster, backing, helm, image=images.docgrid.name, folder=folder) as release:
        release.install()
        release.add_model()
        yield release


@pytest.fixture
def release(shared_release: Release) -> Iterator[Release]:
    """Yield the installed release; afterwards every job has ended, its pools are gone, and the invariants hold."""
    yield shared_release
    shared_release.settle()
    shared_release.remove_pools()
    assert violations(shared_release.db) == []


@pytest.fixture
def bare_release(
    node_cluster: NodeCluster, backing: Backing, helm: Helm, images: Images, tmp_path: Path
) -> Iterator[Release]:
    """Yield a release of the test's own that is not installed yet, once the kinds are there."""
    with new_release(node_cluster, backing, helm, image=images.docgrid.name, folder=tmp_path) as release:
        yield release


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failed test what the cluster says."""
    report = yield
    cluster = item.config.stash.get(_CLUSTER, None)
    if report.failed and cluster is not None:
        report.sections.append(("cluster", dump(cluster)))
    return report
