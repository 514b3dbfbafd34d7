"""The promise of the whole: whatever is killed, frozen or cut, every document ends INDEXED, once, and is found.

A minute by default; `DOCGRID_CHAOS_SECONDS=600` runs the same for ten, with `DOCGRID_CHAOS_SEED` the choices of
an earlier run.
"""

import os
import secrets
from pathlib import Path

import pytest

from docgrid_core.settings import StorageSettings
from support.chaos import SETTLE_LIMIT, Plan, run
from support.servers import embedded_postgres

SECONDS = float(os.environ.get("DOCGRID_CHAOS_SECONDS", "45"))
SEED = int(os.environ.get("DOCGRID_CHAOS_SEED", secrets.randbits(32)))


@pytest.mark.timeout(SECONDS + 2 * SETTLE_LIMIT)
def test_documents_survive_killed_and_frozen_workers_cut_connections_and_a_crashed_database(
    storage_settings: StorageSettings, tmp_path: Path
) -> None:
    plan = Plan(seed=SEED, seconds=SECONDS, documents=round(120 * SECONDS / 45))
    with embedded_postgres() as server:
        counts = run(plan, server=server, storage=storage_settings, folder=tmp_path)
    assert counts["killed"] > 0
    assert counts["database crashed"] == 1
    assert counts["looks at the search view"] > 0
