"""A pytest plugin: one control plane a session, a namespace a test, kubectl in it; helm.

If a test of the run asks for the control plane, its programs are made beside the tests before it: a cold build
takes minutes, more than a test may. Where they can not be had, the tests that need them are skipped with the reason.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from support.cluster import binaries
from support.cluster.api import Api
from support.cluster.background import Preparation
from support.cluster.binaries import Binaries, Report
from support.cluster.control_plane import NODE, ControlPlane
from support.cluster.errors import ApiError, ClusterUnavailable
from support.cluster.helm import Helm
from support.cluster.kubectl import Kubectl
from support.cluster.programs import NodePrograms, prepare_node
from support.cluster.stand_in_node import StandInNode
from support.image.build import Images
from support.image.build import prepare as build_images
from support.layers import TESTS
from support.leaks import MARK
from support.races import wait_until

CRDS = TESTS.parent / "crds"
_PREPARATION = pytest.StashKey[Preparation]()
_BINARIES = pytest.StashKey[Binaries | ClusterUnavailable]()
_NODES = pytest.StashKey[tuple[NodePrograms, Images] | ClusterUnavailable]()

T = TypeVar("T")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to make what the tests will need that takes minutes."""
    wanted = [
        any(_needs(item, name) for item in session.items) for name in ("cluster_binaries", "node_programs")
    ]
    if not session.config.option.collectonly and any(wanted):
        session.config.stash[_PREPARATION] = Preparation(nodes=wanted[1])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Have it before the first test that needs it, and outside of its time limit."""
    if _needs(item, "cluster_binaries") and _BINARIES not in item.config.stash:
        item.config.stash[_BINARIES] = _finish(item.config, binaries.prepare)
    if _needs(item, "node_programs") and _NODES not in item.config.stash:
        item.config.stash[_NODES] = _finish(item.config, prepare_nodes)
    return (yield)


def prepare_nodes(report: Report) -> tuple[NodePrograms, Images]:
    """Return the programs of a node, and the images for it; both are made first if this machine has them not."""
    return prepare_node(report), build_images(report)


def _finish(config: pytest.Config, make: Callable[[Report], T]) -> T | ClusterUnavailable:
    capture = config.pluginmanager.getplugin("capturemanager")
    terminal = config.pluginmanager.getplugin("terminalreporter")

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(line)

    config.stash[_PREPARATION].wait(report)
    try:
        return make(report)
    except ClusterUnavailable as reason:
        return reason


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what a run that ended early still makes, before the leak check sees it."""
    if (preparation := session.config.stash.get(_PREPARATION, None)) is not None:
        preparation.stop()


@pytest.fixture(scope="session")
def cluster_binaries(pytestconfig: pytest.Config) -> Binaries:
    """Return the programs of a control plane."""
    outcome = pytestconfig.stash[_BINARIES]
    if isinstance(outcome, ClusterUnavailable):
        pytest.skip(str(outcome))
    return outcome


@pytest.fixture(scope="session")
def node_programs(pytestconfig: pytest.Config) -> NodePrograms:
    """Return the programs of a node."""
    outcome = pytestconfig.stash[_NODES]
    if isinstance(outcome, ClusterUnavailable):
        pytest.skip(str(outcome))
    return outcome[0]


@pytest.fixture(scope="session")
def images(pytestconfig: pytest.Config, node_programs: NodePrograms) -> Images:
    """Return the images of this checkout."""
    outcome = pytestconfig.stash[_NODES]
    assert not isinstance(outcome, ClusterUnavailable)
    return outcome[1]


@pytest.fixture(scope="session")
def helm(cluster_binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Return helm without a cluster, which renders for a namespace called search."""
    return Helm(cluster_binaries.helm, tmp_path_factory.mktemp("helm"), namespace="search")


@pytest.fixture(scope="session")
def control_plane(cluster_binaries: Binaries) -> Iterator[ControlPlane]:
    """Yield the running control plane that the tests of a session share; a test that harms one starts its own."""
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        plane = ControlPlane(cluster_binaries, Path(folder))
        plane.start()
        try:
            yield plane
        finally:
            plane.stop()


@pytest.fixture(scope="session")
def crds(control_plane: ControlPlane) -> None:
    """Install the CRDs of this checkout."""
    install_crds(control_plane.kubectl())


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """Yield the name of a fresh namespace, in which pods can be made at once."""
    name = f"test-{uuid4().hex[:12]}"
    create_namespace(control_plane.api, name)
    yield name
    control_plane.api.delete(f"/api/v1/namespaces/{name}")  # the rest goes without us


@pytest.fixture
def kubectl(control_plane: ControlPlane, namespace: str) -> Kubectl:
    """Return kubectl as the admin, in the test's namespace."""
    return replace(control_plane.kubectl(), namespace=namespace)


@pytest.fixture
def node(control_plane: ControlPlane) -> Iterator[StandInNode]:
    """Yield a node that runs pods as processes of this machine; it ends with the test, and all its pods with it."""
    with stand_in_node(control_plane) as made:
        yield made


@contextlib.contextmanager
def stand_in_node(plane: ControlPlane) -> Iterator[StandInNode]:
    """Yield one more node of a control plane, ready to take pods."""
    name = f"node-{uuid4().hex[:8]}"
    mark = {key: os.environ[key] for key in (MARK,) if key in os.environ}  # of the leak check
    with (
        tempfile.TemporaryDirectory(prefix=f"{name}-") as folder,
        StandInNode(plane.api_of(NODE), Path(folder), name=name, mark=mark) as made,
    ):
        wait_until(lambda: "taints" not in plane.api.get(f"/api/v1/nodes/{name}")["spec"])
        yield made


def install_crds(kubectl: Kubectl) -> None:
    """Apply the CRDs of this checkout and wait until the apiserver serves them."""
    kubectl("apply", "--server-side", "-f", str(CRDS))
    kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))


def create_namespace(api: Api, name: str) -> None:
    """Create a namespace and wait for its ServiceAccount `default`, without which no pod is admitted."""
    api.create("/api/v1/namespaces", {"metadata": {"name": name}})

    def has_account() -> bool:
        try:
            api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default")
        except ApiError:
            return False
        return True

    wait_until(has_account)


def _needs(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())
