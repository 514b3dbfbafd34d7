"""A failed job is pinned to its model: what becomes of it when another one has become the active one."""

from collections.abc import Callable
from functools import partial

import pytest

from docgrid_core.database import Database
from docgrid_core.errors import ModelChangeNotAllowed, RetryNotAllowed
from docgrid_core.jobs import FailureType, JobId
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import control, documents, fail, models
from docgrid_core.testing import factories
from support import races, tables


def fail_for_good(db: Database, name: str) -> JobId:
    """Register a document whose indexing fails for a reason that is not the document's."""
    run = factories.run(db, document=factories.register(db, name))
    report = fail.Report(FailureType.STORAGE_OBJECT_MISSING, "gone")
    assert not fail.fail(db, run.own, report, policy=RetryPolicy()).retried
    return run.own.job_id


def add_other(db: Database) -> None:
    models.add(db, provider="builtin", name="other", version="1", dimension=8, config={})


def test_a_job_of_a_model_that_is_not_active_is_not_retried(db: Database) -> None:
    failed = fail_for_good(db, "page")
    add_other(db)
    models.activate(db, "other")

    with pytest.raises(RetryNotAllowed, match="no longer active"):
        control.retry(db, failed, reason="", by="test")


@pytest.mark.parametrize("retry", ["by hand", "registered again"])
def test_a_switch_waits_for_a_job_that_is_being_retried_and_then_refuses(
    db: Database, database_settings: DatabaseSettings, retry: str
) -> None:
    failed = fail_for_good(db, "page")
    add_other(db)
    by_hand = partial(control.retry, job_id=failed, reason="", by="test")
    again = partial(documents.register, source=factories.source("page"))
    reopen: Callable[[Database], object] = by_hand if retry == "by hand" else again
    tables.hold_updates(db, "embedding_jobs")
    with (
        races.connected(database_settings, application_name="retrier") as retrier,
        races.connected(database_settings, application_name="switcher") as switcher,
    ):
        # 1. The retry has looked at its model and stands in front of its update.
        with tables.holding(db):
            retrying = races.Call(lambda: reopen(retrier))
            races.wait_until(lambda: races.waits_for_lock(db, "retrier"))
            # 2. The switch waits for it.
            switching = races.Call(lambda: models.activate(switcher, "other"))
            races.wait_until(lambda: races.waits_for_lock(db, "switcher"))
        # 3. The retry comes first, and the switch sees its job.
        retrying.result()
        assert isinstance(switching.error(), ModelChangeNotAllowed)
    assert tables.job(db, failed).status == "PENDING"
