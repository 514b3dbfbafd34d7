"""What docs/operations/roles-and-tls.md promises: the rights that are enough, and what happens without others."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy.engine import make_url

from docgrid_core.database import Database
from docgrid_core.jobs import StopReason
from docgrid_core.maintenance import Maintenance, Retention, Watch
from docgrid_core.migrations import check_schema
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings, MaintenanceSettings
from docgrid_core.store import workers
from docgrid_core.testing import factories
from support import races, tables

# The statements of the page, for a role that exists already.
GRANTS = (
    "GRANT TEMPORARY, CONNECT ON DATABASE {database} TO {role}",
    "GRANT USAGE ON SCHEMA public TO {role}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
)


@contextmanager
def role(settings: DatabaseSettings, *grants: str) -> Iterator[DatabaseSettings]:
    """Yield the settings of a new role that has these rights; nobody has any by being PUBLIC."""
    url = make_url(settings.url.get_secret_value())
    name = f"docgrid_test_{uuid.uuid4().hex}"
    names = {"role": sql.Identifier(name), "database": sql.Identifier(str(url.database))}
    with psycopg.connect(settings.url.get_secret_value(), autocommit=True) as owner:
        for statement in (
            "CREATE ROLE {role} LOGIN PASSWORD 'secret'",
            "REVOKE ALL ON DATABASE {database} FROM PUBLIC",
            *grants,
        ):
            owner.execute(sql.SQL(statement).format(**names))
        try:
            address = url.set(username=name, password="secret")
            yield DatabaseSettings(url=SecretStr(address.render_as_string(hide_password=False)))
        finally:
            owner.execute(sql.SQL("DROP OWNED BY {role}").format(**names))
            owner.execute(sql.SQL("DROP ROLE {role}").format(**names))


def maintenance(db: Database) -> Maintenance:
    return Maintenance(db, MaintenanceSettings(), RetryPolicy(), Watch(longest_gap=timedelta(hours=1)))


def test_rows_and_temporary_tables_are_all_that_indexing_and_maintenance_need(
    database_settings: DatabaseSettings,
) -> None:
    with role(database_settings, *GRANTS) as settings, races.connected(settings) as db:
        check_schema(db)
        factories.index(db)
        factories.run(db)
        factories.register_worker(db, pod_uid="pod")
        workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.ERROR)
        maintenance(db).run_once()
        Retention(db, MaintenanceSettings()).run_once()


@pytest.mark.parametrize(
    ("rights", "left"),
    [
        ((), 1),
        (("pg_signal_backend",), 1),
        (("pg_read_all_stats",), 1),
        (("pg_signal_backend", "pg_read_all_stats"), 0),
    ],
    ids=["none", "signal", "see", "both"],
)
def test_maintenance_goes_on_whether_or_not_it_may_cut_another_roles_sessions(
    db: Database, database_settings: DatabaseSettings, rights: tuple[str, ...], left: int
) -> None:
    more = [f"GRANT {right} TO {{role}}" for right in rights]
    with (
        role(database_settings, *GRANTS) as frozen_settings,
        role(database_settings, *GRANTS, *more) as other_settings,
        races.connected(other_settings) as other,
    ):
        run = factories.run(db, worker=factories.register_worker(db, pod_uid="pod"))
        name = f"{workers.APPLICATION_PREFIX}{run.worker.instance_id}"
        with races.connected(frozen_settings, application_name=name) as frozen:
            tables.value(frozen, "SELECT 1")
            workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.ERROR)

            assert maintenance(other).run_once().recovered.retried == 1

            races.wait_until(lambda: len(races.sessions(db, name)) == left)
