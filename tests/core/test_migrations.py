"""Migrating, alone and at once; and refusing, in one line, a database that is not what this release needs."""

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from pydantic import SecretStr
from sqlalchemy import Connection
from sqlalchemy.engine import make_url

from docgrid_core import migrations
from docgrid_core.database import Database
from docgrid_core.errors import DatabaseUnusable, DocGridError
from docgrid_core.migrations import check_schema, check_server, head_revision, migrate
from docgrid_core.settings import DatabaseSettings
from support import races, tables


@pytest.fixture
def empty(empty_database_settings: DatabaseSettings) -> Iterator[Database]:
    """Yield a database that was never migrated."""
    with races.connected(empty_database_settings) as db:
        yield db


@pytest.fixture
def owner(empty_database_settings: DatabaseSettings) -> Iterator[DatabaseSettings]:
    """Yield an empty database as its owner sees it, who is no superuser."""
    url = make_url(empty_database_settings.url.get_secret_value())
    name = f"docgrid_test_{uuid.uuid4().hex}"
    names = {"role": sql.Identifier(name), "database": sql.Identifier(str(url.database))}
    with psycopg.connect(empty_database_settings.url.get_secret_value(), autocommit=True) as superuser:
        superuser.execute(sql.SQL("CREATE ROLE {role} LOGIN PASSWORD 'secret'").format(**names))
        try:
            superuser.execute(sql.SQL("ALTER DATABASE {database} OWNER TO {role}").format(**names))
            address = url.set(username=name, password="secret").render_as_string(hide_password=False)
            yield DatabaseSettings(url=SecretStr(address))
        finally:
            superuser.execute(sql.SQL("REASSIGN OWNED BY {role} TO CURRENT_USER").format(**names))
            superuser.execute(sql.SQL("DROP ROLE {role}").format(**names))


def line(error: pytest.ExceptionInfo[DocGridError]) -> str:
    """Return the message, which must be one line."""
    message = error.value.message
    assert "\n" not in message
    return message


def test_migrating_goes_from_nothing_to_the_revision_of_this_release(
    empty: Database, empty_database_settings: DatabaseSettings
) -> None:
    assert migrate(empty_database_settings) == (None, head_revision())
    check_schema(empty)


def test_migrating_again_changes_nothing(database_settings: DatabaseSettings, db: Database) -> None:
    before = tables.fetch(db, "SELECT oid, relname, xmin::text FROM pg_class ORDER BY oid")

    assert migrate(database_settings) == (head_revision(), head_revision())
    assert tables.fetch(db, "SELECT oid, relname, xmin::text FROM pg_class ORDER BY oid") == before


def test_of_several_that_migrate_at_once_one_does_the_work(
    empty: Database, empty_database_settings: DatabaseSettings
) -> None:
    outcomes = races.together([lambda: migrate(empty_database_settings)] * 4)

    assert sorted(outcomes, key=repr) == [
        *[(head_revision(), head_revision())] * 3,
        (None, head_revision()),
    ]
    check_schema(empty)


def test_a_migration_that_fails_leaves_nothing(
    empty: Database, empty_database_settings: DatabaseSettings
) -> None:
    tables.change(empty, "CREATE TABLE indexing_events (id int)")

    with pytest.raises(DocGridError):
        migrate(empty_database_settings)

    assert tables.fetch(empty, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'") == [
        ("indexing_events",)
    ]


def test_after_a_migration_that_failed_the_next_one_works(
    empty: Database, empty_database_settings: DatabaseSettings
) -> None:
    tables.change(empty, "CREATE TABLE indexing_events (id int)")
    with pytest.raises(DocGridError):
        migrate(empty_database_settings)
    tables.change(empty, "DROP TABLE indexing_events")

    assert migrate(empty_database_settings) == (None, head_revision())


def test_a_database_without_schema_is_refused_with_what_to_do(empty: Database) -> None:
    with pytest.raises(DatabaseUnusable) as error:
        check_schema(empty)

    assert line(error) == (
        f"the database has no DocGrid schema, this release needs {head_revision()}: run `docgrid migrate`"
    )


def test_a_schema_from_the_future_is_neither_used_nor_migrated(
    db: Database, database_settings: DatabaseSettings
) -> None:
    tables.change(db, "UPDATE alembic_version SET version_num = 'beyond'")

    with pytest.raises(DatabaseUnusable) as used:
        check_schema(db)
    with pytest.raises(DatabaseUnusable) as migrated:
        migrate(database_settings)

    assert line(used) == line(migrated)
    assert "revision beyond, which this release does not know" in line(used)


def test_a_schema_of_an_older_release_is_refused_with_what_to_do(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "head_revision", lambda: "0009")

    with pytest.raises(DatabaseUnusable) as error:
        check_schema(db)

    assert line(error) == (
        "the database has schema revision 0001, this release needs 0009: run `docgrid migrate`"
    )


def test_who_may_not_create_the_extension_is_told_who_must(owner: DatabaseSettings) -> None:
    with pytest.raises(DatabaseUnusable) as error:
        migrate(owner)

    assert "CREATE EXTENSION vector" in line(error)
    assert "administrator" in line(error)


def test_where_the_extension_is_there_the_owner_of_the_database_can_migrate(
    empty: Database, owner: DatabaseSettings
) -> None:
    tables.change(empty, "CREATE EXTENSION vector")

    assert migrate(owner) == (None, head_revision())


def test_the_server_tells_its_versions(db: Database) -> None:
    found = check_server(db)

    assert float(found.postgresql) >= 15
    assert found.pgvector == tables.value(db, "SELECT extversion FROM pg_extension WHERE extname = 'vector'")


class Server(Connection):
    """A server of other versions than the real one: answers the three questions of the check."""

    def __init__(self, version: int, available: str | None, installed: str | None) -> None:
        self._answers = iter((version, available, installed))

    def scalar(self, *_: object, **__: object) -> object:  # type: ignore[override]
        """Answer the next question."""
        return next(self._answers)


@pytest.mark.parametrize(
    ("server", "told"),
    [
        (Server(140_022, "0.8.0", None), "PostgreSQL 14: DocGrid needs 15 or newer"),
        (Server(150_004, None, None), "no pgvector: install the extension `vector` 0.8 or newer"),
        (Server(150_004, "0.7.4", None), "pgvector 0.7.4: DocGrid needs 0.8 or newer"),
        (Server(180_006, "0.8.6", "0.7.4"), "pgvector 0.7.4: DocGrid needs 0.8 or newer (ALTER EXTENSION"),
    ],
)
def test_a_server_that_is_too_old_or_has_no_pgvector_is_refused(server: Server, told: str) -> None:
    with pytest.raises(DatabaseUnusable) as error:
        migrations._check_server(server)

    assert told in line(error)
