"""A pytest plugin: one control plane a session, a namespace a test, kubectl in it; helm.

If a test of the run asks for the control plane, its programs are made beside the tests before it: a cold build
takes minutes, more than a test may. Where they can not be had, the tests that need them are skipped with the reason.
"""

import contextlib
import os
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from support.cluster import binaries
from support.cluster.api import Api
from support.cluster.background import Preparation
from support.cluster.binaries import Binaries
from support.cluster.control_plane import NODE, ControlPlane
from support.cluster.errors import ApiError, ClusterUnavailable
from support.cluster.helm import Helm
from support.cluster.kubectl import Kubectl
from support.cluster.stand_in_node import StandInNode
from support.layers import TESTS
from support.leaks import MARK
from support.races import wait_until

CRDS = TESTS.parent / "crds"
_PREPARATION = pytest.StashKey[Preparation]()
_OUTCOME = pytest.StashKey[Binaries | ClusterUnavailable]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to make the programs if one of the tests will need them."""
    if not session.config.option.collectonly and any(_needs_cluster(item) for item in session.items):
        session.config.stash[_PREPARATION] = Preparation()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Have the programs before the first test that needs them, and outside of its time limit."""
    if _needs_cluster(item) and _OUTCOME not in item.config.stash:
        item.config.stash[_OUTCOME] = _finish(item.config)
    return (yield)


def _finish(config: pytest.Config) -> Binaries | ClusterUnavailable:
    capture = config.pluginmanager.getplugin("capturemanager")
    terminal = config.pluginmanager.getplugin("terminalreporter")

    def report(line: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(line)

    config.stash[_PREPARATION].wait(report)
    try:
        return binaries.prepare(report)
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
    outcome = pytestconfig.stash[_OUTCOME]
    if isinstance(outcome, ClusterUnavailable):
        pytest.skip(str(outcome))
    return outcome


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


def _needs_cluster(item: pytest.Item) -> bool:
    return "cluster_binaries" in getattr(item, "fixturenames", ())
