"""Fixtures of the operator's tests: a release with a namespace and a database of its own on the control plane."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from docgrid_core.settings import DatabaseSettings
from support.apiserver_proxy import ApiServerProxy
from support.cluster.binaries import Binaries
from support.cluster.control_plane import ControlPlane
from support.operator_site import OperatorSite
from support.proxy import Proxy


@pytest.fixture(scope="module")
def own_plane(cluster_binaries: Binaries) -> Iterator[ControlPlane]:
    """Yield a running control plane of a module's own, without our kinds."""
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        plane = ControlPlane(cluster_binaries, Path(folder))
        plane.start()
        try:
            yield plane
        finally:
            plane.stop()


@pytest.fixture
def site(
    control_plane: ControlPlane,
    crds: None,
    namespace: str,
    database_settings: DatabaseSettings,
    tmp_path: Path,
) -> Iterator[OperatorSite]:
    """Yield a release without an operator: the test starts it."""
    release = OperatorSite(control_plane, namespace, database_settings, folder=tmp_path)
    try:
        yield release
    finally:
        release.close()


@pytest.fixture
def network(site: OperatorSite) -> Iterator[Proxy]:
    """Yield the network between operators and the apiserver."""
    address = urlsplit(site.control_plane.server)
    with Proxy((str(address.hostname), int(address.port or 0))) as proxy:
        site.server = f"https://{proxy.endpoint}"
        yield proxy


@pytest.fixture
def apiserver(site: OperatorSite) -> Iterator[ApiServerProxy]:
    """Yield an apiserver as operators see it."""
    with ApiServerProxy(site.control_plane.server) as proxy:
        site.server = proxy.server
        yield proxy
