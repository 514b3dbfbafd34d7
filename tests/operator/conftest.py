"""Fixtures of the operator's tests: a release with a namespace and a database of its own on the control plane."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from docgrid_core.settings import DatabaseSettings
from support.cluster.control_plane import ControlPlane
from support.operator_site import OperatorSite


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
