"""The stages of a job: parse, embed, complete; each a module with `run`.

The worker calls them in turn. A stage begins with a transaction that says what to do, works outside of any
transaction, and ends with one that stores the result; each can be repeated after a crash. Between steps it asks
whether the job is still its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, TypeVar

from docgrid_core.database import Database
from docgrid_core.records import Ownership
from docgrid_core.settings import ChunkingSettings, ParsingSettings
from docgrid_pipeline.embeddings import EmbeddingProvider
from docgrid_pipeline.objects import ObjectStore

T = TypeVar("T")


class Execution(Protocol):
    """The running execution of a claim, as its stages see it: whose it is, and whether it still goes on."""

    @property
    def ownership(self) -> Ownership:
        """The fence that every write carries."""

    def check(self) -> None:
        """Raise when the job is no longer this execution's, which ends it without a report."""

    def persist(self, transaction: Callable[[], T]) -> T:
        """Run a transaction, again and again while the database is away and the lease may still hold."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What the stages of all jobs of a process share."""

    db: Database
    objects: ObjectStore
    provider: EmbeddingProvider
    parsing: ParsingSettings
    chunking: ChunkingSettings
    lease_duration: timedelta

    @property
    def store_timeout(self) -> timedelta:
        """How long the insert of a version's vectors may take."""
        return self.db.settings.store_timeout
