"""A PostgreSQL server of a benchmark's own, and databases on it that are cloned from one another.

The server has its default configuration. `durable` says whether commits wait for the disk: without, nothing hides
the cost of the code that is measured; with it, absolute times are those of an installation.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql
from pydantic import SecretStr

from docgrid_cli.local.ports import free_ports
from docgrid_cli.local.postgres import EmbeddedPostgres
from docgrid_core.database import Database
from docgrid_core.migrations import migrate
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import models

APPLICATION = "docgrid-bench"

_CREATE = sql.SQL("CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
_DROP = sql.SQL("DROP DATABASE {name} WITH (FORCE)")


class Cluster:
    """One running server; its databases are made by `migrated` and `cloned`."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self._server = server

    def url(self, name: str) -> str:
        """Return the address of a database, for the driver."""
        return self._server.url(name)

    def migrated(self, name: str, *, dimension: int) -> DatabaseSettings:
        """Create a database with the schema of this release and one active model."""
        self._run(_CREATE.format(name=sql.Identifier(name), template=sql.Identifier("template1")))
        settings = self.settings(name)
        migrate(settings)
        with contextlib.closing(Database(settings, application_name=APPLICATION)) as db:
            models.add(db, provider="builtin", name="bench", version="1", dimension=dimension, config={})
            models.activate(db, "bench")
        return settings

    @contextlib.contextmanager
    def cloned(self, template: str, suffix: str) -> Iterator[str]:
        """Yield the name of a copy of `template`, which nobody may be connected to."""
        name = f"{template}_{suffix}"
        self._run(_CREATE.format(name=sql.Identifier(name), template=sql.Identifier(template)))
        try:
            yield name
        finally:
            self._run(_DROP.format(name=sql.Identifier(name)))

    def settings(self, name: str) -> DatabaseSettings:
        """Return the settings with which DocGrid reaches a database."""
        return DatabaseSettings(url=SecretStr(self.url(name)))

    def connect(self, name: str) -> "psycopg.Connection[tuple[object, ...]]":
        """Return an autocommit connection of the driver itself."""
        return psycopg.connect(self.url(name), autocommit=True)

    def checkpoint(self) -> None:
        """Write everything out now, so that no checkpoint falls into a measurement for its predecessors' sake."""
        self._run(sql.SQL("CHECKPOINT"))

    def _run(self, statement: sql.SQL | sql.Composed) -> None:
        with self.connect("postgres") as connection:
            connection.execute(statement)


@contextlib.contextmanager
def cluster(*, durable: bool) -> Iterator[Cluster]:
    """Yield a fresh server; nothing of it remains afterwards."""
    with scratch_folder() as folder:
        server = EmbeddedPostgres(folder / "postgres", port=free_ports(), durable=durable)
        server.start()
        try:
            yield Cluster(server)
        finally:
            server.stop()


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder that an unprivileged server can reach; what a link in it leads to goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        for link in [path for path in folder.rglob("*") if path.is_symlink() and path.is_dir()]:
            shutil.rmtree(link.resolve())
        shutil.rmtree(folder)
