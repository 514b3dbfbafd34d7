"""The DocGrid that a command works against: its settings, and what they lead to.

Settings come from `DOCGRID_…` variables. When `DOCGRID_DATABASE_URL` is not set, what the local stack has written
down about itself comes first: its database, object store and embedding server belong together.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from docgrid_cli.terminal import quiet_logs
from docgrid_core import settings
from docgrid_core.database import Database
from docgrid_core.errors import DatabaseUnavailable, DatabaseUnusable, SettingsError
from docgrid_core.migrations import check_schema
from docgrid_core.records import EmbeddingModel
from docgrid_core.settings import DatabaseSettings, EmbeddingSettings, Section, StorageSettings

if TYPE_CHECKING:
    from docgrid_pipeline.embeddings import EmbeddingProvider
    from docgrid_pipeline.objects import ObjectStore

S = TypeVar("S", bound=Section)

_DATABASE_URL = "DOCGRID_DATABASE_URL"


@dataclass(frozen=True)
class Installation:
    """One DocGrid. `stack` has the settings of the local stack, and is empty when it is another one."""

    stack: Mapping[str, str]

    def load(self, section: type[S]) -> S:
        """Return a section of the settings; raises `SettingsError`."""
        prefix = str(section.model_config["env_prefix"])
        given = {
            key.removeprefix(prefix).lower(): value
            for key, value in self.stack.items()
            if key.startswith(prefix)
        }
        return settings.load(section, **given)

    @contextmanager
    def database(self, *, pool_size: int = 2, checked: bool = True) -> Iterator[Database]:
        """Connect for a `with` block; `checked`: only to a database with the schema of this release.

        Raises `DatabaseUnusable`, also for the local stack when it does not run, and `DatabaseUnavailable`.
        """
        database = Database(self.load(DatabaseSettings), application_name="docgrid-cli", pool_size=pool_size)
        with closing(database) as db:
            try:
                if checked:
                    check_schema(db)
                yield db
            except DatabaseUnusable:
                raise
            except DatabaseUnavailable as error:
                raise self._explained(error) from None

    @contextmanager
    def objects(self) -> "Iterator[ObjectStore]":
        """Return the object store for a `with` block; no connection is opened yet."""
        from docgrid_pipeline.objects import ObjectStore

        with closing(ObjectStore(self.load(StorageSettings))) as store:
            yield store

    @contextmanager
    def provider(self, model: EmbeddingModel) -> "Iterator[EmbeddingProvider]":
        """Return what embeds with `model` for a `with` block; no connection is opened yet."""
        from docgrid_pipeline.embeddings import build_provider

        with closing(build_provider(self.load(EmbeddingSettings), model)) as provider:
            yield provider

    def _explained(self, error: DatabaseUnavailable) -> DatabaseUnavailable:
        if self.stack and not _stack_runs():
            return DatabaseUnusable("the local stack does not run: start it with `docgrid up`")
        return error


def find_installation() -> Installation:
    """Return the DocGrid of this process' environment; raises `SettingsError` that says what to do if none is."""
    quiet_logs()
    if os.environ.get(_DATABASE_URL):
        return Installation({})
    stack = _read_stack()
    if not stack:
        raise SettingsError(
            f"there is no database to work with: start the local stack with `docgrid up`, or set {_DATABASE_URL}"
        )
    return Installation(stack)


def _read_stack() -> Mapping[str, str]:
    """Return the settings of the local stack; none where its parts are not installed, as in a cluster."""
    try:
        from docgrid_cli.local import profile
    except ModuleNotFoundError:
        return {}
    return profile.load()


def _stack_runs() -> bool:
    from docgrid_cli.local.home import holder, home_folder

    return holder(home_folder()) is not None
