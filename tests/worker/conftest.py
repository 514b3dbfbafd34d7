"""Sites for the worker tests: with a provider that fails on request, and with a real model.

After each test the invariants are checked: whatever the test did, the database must be whole.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from docgrid_core.settings import DatabaseSettings, StorageSettings
from docgrid_core.testing.invariants import violations
from support.fake_provider import FakeProvider
from support.site import Site, builtin_site, fake_site


@pytest.fixture
def provider() -> Iterator[FakeProvider]:
    """Yield an embedding server that does what a test plans; its requests wait while its gate is clear."""
    with FakeProvider() as server:
        yield server


@pytest.fixture
def site(
    database_settings: DatabaseSettings,
    storage_settings: StorageSettings,
    provider: FakeProvider,
    tmp_path: Path,
) -> Iterator[Site]:
    """Yield a site whose workers ask `provider`."""
    with fake_site(database_settings, storage_settings, provider, folder=tmp_path) as made:
        yield made
        assert violations(made.db) == []


@pytest.fixture
def real_site(
    database_settings: DatabaseSettings, storage_settings: StorageSettings, tmp_path: Path
) -> Iterator[Site]:
    """Yield a site whose workers embed with a real model.

    After each test the invariants are checked: whatever the test did, the database must be whole.
    """
    with builtin_site(database_settings, storage_settings, folder=tmp_path) as made:
        yield made
        assert violations(made.db) == []
