"""`docgrid` against a database, and against a whole installation with object store, model and workers."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from docgrid_core.settings import DatabaseSettings, StorageSettings
from docgrid_core.testing.invariants import violations
from support.cli import Cli, environment_of
from support.site import Site, builtin_site


@pytest.fixture
def cli(database_settings: DatabaseSettings, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Return `docgrid` against a database of the test's own, with nothing else beside it."""
    return Cli(environment_of(database_settings, home=str(tmp_path / "home")), capsys)


@pytest.fixture
def bare_cli(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Return `docgrid` on a machine where DocGrid was never set up."""
    return Cli({"DOCGRID_HOME": str(tmp_path / "home")}, capsys)


@pytest.fixture
def bucket(storage_settings: StorageSettings) -> StorageSettings:
    """Return the settings of a bucket of the test's own, not made yet."""
    return storage_settings.model_copy(update={"bucket": f"test-{uuid4().hex}"})


@pytest.fixture
def site(database_settings: DatabaseSettings, bucket: StorageSettings, tmp_path: Path) -> Iterator[Site]:
    """Yield an installation whose workers embed with a real model; at the end its invariants must hold."""
    folder = tmp_path / "site"
    folder.mkdir()
    with builtin_site(database_settings, bucket, folder=folder) as made:
        yield made
        assert violations(made.db) == []


@pytest.fixture
def site_cli(site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Return `docgrid` against `site`."""
    environment = environment_of(
        site.database, site.storage, embedding_provider="builtin", home=str(tmp_path / "home")
    )
    return Cli(environment, capsys)
