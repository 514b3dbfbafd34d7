"""Registering what was found: the bytes go to the object store, then the document into the queue.

Many documents at once. Both steps can be repeated without harm, so a short outage of either server is waited
out, and a run that was broken off is simply run again.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from docgrid_cli.ingestion.finding import Found, Passed
from docgrid_core.database import Database
from docgrid_core.errors import (
    Busy,
    DatabaseUnavailable,
    DatabaseUnusable,
    RefusedError,
    StorageUnavailable,
)
from docgrid_core.jobs import DocumentId, DocumentType, JobId
from docgrid_core.records import ObjectRef, RegistrationOutcome
from docgrid_core.store import documents
from docgrid_core.store.documents import Source
from docgrid_pipeline.objects import ListedObject, ObjectStore

LANES = 8
"""Documents that are registered at the same time."""

PATIENCE = 30.0
"""Seconds for which an outage of a server is waited out."""

_FIRST_WAIT = 0.2

_CONTENT_TYPES = {
    DocumentType.TXT: "text/plain",
    DocumentType.MD: "text/markdown",
    DocumentType.HTML: "text/html",
}


class Outcome(StrEnum):
    """What became of one thing that was found."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    IN_PROGRESS = "in_progress"
    RETRIED = "retried"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one document; `reason` says why it was skipped or failed."""

    source_uri: str
    outcome: Outcome
    document_id: DocumentId | None = None
    version_no: int | None = None
    job_id: JobId | None = None
    error_code: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the person wants for all documents of a run."""

    priority: int = 0
    supersede: bool = False
    force: bool = False


class Registrar:
    """Registers documents; any number of threads may call it at once."""

    def __init__(self, db: Database, objects: ObjectStore, *, max_size: int, wishes: Wishes) -> None:
        """Take documents of at most `max_size` bytes."""
        self._db = db
        self._objects = objects
        self._max_size = max_size
        self._wishes = wishes
        self._ending = threading.Event()

    def register_all(self, found: Iterable[Found | Passed]) -> Iterator[Result]:
        """Yield the result of each as it comes. Raises what no document is to blame for, after 30 s of trying."""
        pool = ThreadPoolExecutor(LANES, thread_name_prefix="ingest")
        try:
            for future in as_completed([pool.submit(self.register, item) for item in found]):
                yield future.result()
        finally:
            self._ending.set()
            pool.shutdown(cancel_futures=True)

    def register(self, item: Found | Passed) -> Result:
        """Register one document; what is wrong with it alone is its result."""
        if isinstance(item, Passed):
            outcome = Outcome.SKIPPED if item.skipped else Outcome.FAILED
            return Result(item.source_uri, outcome, error_code=item.error.code, reason=item.error.message)
        try:
            return self._patiently(lambda: self._register(item))
        except RefusedError as error:
            return Result(item.source_uri, Outcome.FAILED, error_code=error.code, reason=error.message)

    def _register(self, item: Found) -> Result:
        source = Source(
            item.source_uri, item.title, item.document_type, self._bytes_of(item), self._wishes.priority
        )
        answer = documents.register(
            self._db, source, supersede=self._wishes.supersede, force=self._wishes.force, by="docgrid ingest"
        )
        code, _, reason = (answer.reason or "").partition(": ")
        return Result(
            item.source_uri,
            _OUTCOMES[answer.outcome],
            document_id=answer.document_id,
            version_no=answer.version_no,
            job_id=answer.job_id,
            error_code=code or None,
            reason=reason or None,
        )

    def _patiently(self, step: Callable[[], Result]) -> Result:
        """Try again while a server is away, but not when the run is ending."""
        give_up_at = time.monotonic() + PATIENCE
        wait = _FIRST_WAIT
        while True:
            try:
                return step()
            except DatabaseUnusable:
                raise
            except (Busy, DatabaseUnavailable, StorageUnavailable):
                if time.monotonic() >= give_up_at or self._ending.wait(wait):
                    raise
            wait = min(2 * wait, 2.0)

    def _bytes_of(self, item: Found) -> ObjectRef:
        if isinstance(item.place, Path):
            content_type = _CONTENT_TYPES[item.document_type]
            return self._objects.put(item.place, content_type=content_type, max_size=self._max_size)
        known = documents.find_source(self._db, item.source_uri)
        if known is not None and _is_same(known, item.place):
            return known  # its hash is known: the object is not read again
        return self._objects.describe(item.place, max_size=self._max_size)


_OUTCOMES = {
    RegistrationOutcome.CREATED: Outcome.CREATED,
    RegistrationOutcome.UNCHANGED: Outcome.UNCHANGED,
    RegistrationOutcome.IN_PROGRESS: Outcome.IN_PROGRESS,
    RegistrationOutcome.RETRIED: Outcome.RETRIED,
    RegistrationOutcome.FAILED: Outcome.FAILED,
}


def _is_same(known: ObjectRef, listed: ListedObject) -> bool:
    return listed.etag is not None and (known.etag, known.size, known.object_version) == (
        listed.etag,
        listed.size,
        listed.version,
    )
