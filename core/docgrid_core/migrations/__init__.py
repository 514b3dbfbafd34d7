"""Bringing a database to the schema of this release, and refusing one that is on another.

Called by `docgrid migrate`, the local stack and the tests; every component calls `check_schema` before it is
ready. Migrations expand first and contract a release later, so that old workers keep working in a rollout.
Alembic is imported where it is used: loading it takes a fifth of the time in which a worker must start.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from docgrid_core.database import Database, connect_arguments, database_url, translate
from docgrid_core.errors import DatabaseUnusable
from docgrid_core.settings import DatabaseSettings

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

MIN_SERVER = 150_000
MIN_PGVECTOR = (0, 8)
# An arbitrary constant that names the lock of migrations in pg_locks.
_LOCK = 0x646F6367
_POLL_SECONDS = 0.2


def migrate(settings: DatabaseSettings) -> tuple[str | None, str]:
    """Create or upgrade the schema; return the revisions before and after.

    Safe to run from several processes at once: one works, the others wait by polling, since a wait inside the
    server would deadlock with CREATE INDEX CONCURRENTLY. Raises `DatabaseUnusable` for a server that is too
    old, has no pgvector, or is on a revision that this release does not know.
    """
    if settings.pooler:
        raise DatabaseUnusable(
            "migrations need a session of their own: point DOCGRID_DATABASE_URL at the server itself, not at the"
            " pooler, and unset DOCGRID_DATABASE_POOLER"
        )
    engine = create_engine(
        database_url(settings),
        poolclass=NullPool,
        hide_parameters=True,
        connect_args=connect_arguments(settings, "docgrid-migrate") | {"options": "-c lock_timeout=5000"},
    )
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as lock:
            while not lock.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}):
                time.sleep(_POLL_SECONDS)
            try:
                _check_server(lock)
                with engine.begin() as connection:
                    before = _require_known(current_revision(connection))
                    _create_extension(connection)
                    _upgrade(connection)
            finally:
                lock.scalar(text("SELECT pg_advisory_unlock(:key)"), {"key": _LOCK})
    except DBAPIError as error:
        raise translate(error.orig) from None
    finally:
        engine.dispose()
    return before, head_revision()


def check_schema(db: Database) -> None:
    """Raise `DatabaseUnusable` unless the database is on the revision that this release was built for."""
    found = db.run(lambda transaction: current_revision(transaction.connection))
    if _require_known(found) != head_revision():
        raise DatabaseUnusable(
            f"the database has {'no DocGrid schema' if found is None else f'schema revision {found}'},"
            f" this release needs {head_revision()}: run `docgrid migrate`"
        )


@dataclass(frozen=True, slots=True)
class ServerVersions:
    """What runs on the other side, as `18.6`; pgvector's is the one installed, else the one that could be."""

    postgresql: str
    pgvector: str


def check_server(db: Database) -> ServerVersions:
    """Return the server's versions; raise `DatabaseUnusable` unless it is new enough and has pgvector."""
    return db.run(lambda transaction: _check_server(transaction.connection))


def current_revision(connection: Connection) -> str | None:
    """Return the revision that the database is on; None = no schema of ours."""
    from alembic.runtime.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


def head_revision() -> str:
    """Return the revision of this release."""
    revision = _scripts().get_current_head()
    if revision is None:
        raise RuntimeError("this installation has no migrations")
    return revision


def _require_known(revision: str | None) -> str | None:
    known = {script.revision for script in _scripts().walk_revisions()}
    if revision is not None and revision not in known:
        raise DatabaseUnusable(
            f"the database has schema revision {revision}, which this release does not know:"
            " install the DocGrid release that made it, or a newer one"
        )
    return revision


def _check_server(connection: Connection) -> ServerVersions:
    version = connection.scalar(text("SELECT current_setting('server_version_num')::int"))
    if version < MIN_SERVER:
        raise DatabaseUnusable(
            f"the database is PostgreSQL {version // 10_000}: DocGrid needs {MIN_SERVER // 10_000} or newer"
        )
    available = connection.scalar(
        text("SELECT default_version FROM pg_available_extensions WHERE name = 'vector'")
    )
    installed = connection.scalar(text("SELECT extversion FROM pg_extension WHERE extname = 'vector'"))
    found = installed or available
    if found is None:
        raise DatabaseUnusable(
            "the database server has no pgvector: install the extension `vector` 0.8 or newer on it"
        )
    if tuple(int(part) for part in found.split(".")[:2]) < MIN_PGVECTOR:
        raise DatabaseUnusable(
            f"the database has pgvector {found}: DocGrid needs 0.8 or newer (ALTER EXTENSION vector UPDATE)"
        )
    return ServerVersions(f"{version // 10_000}.{version % 10_000}", found)


def _create_extension(connection: Connection) -> None:
    """Create pgvector unless it is there: then no right to create extensions is needed."""
    if connection.scalar(text("SELECT 1 FROM pg_extension WHERE extname = 'vector'")):
        return
    try:
        connection.execute(text("CREATE EXTENSION vector"))
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != "42501":
            raise
        raise DatabaseUnusable(
            "this database user may not create the extension vector: let an administrator run"
            " CREATE EXTENSION vector, then run `docgrid migrate` again"
        ) from None


def _upgrade(connection: Connection) -> None:
    from alembic import command

    command.upgrade(_config(connection), "head")


def _scripts() -> "ScriptDirectory":
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config(None))


def _config(connection: Connection | None) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["connection"] = connection
    return config
