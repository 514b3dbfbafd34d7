"""The checks of `docgrid doctor`: each says that a part is as it must be, or what to fix.

A check returns what it found, or raises the error whose text says what is wrong. One that needs the database is
left out while there is none.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from docgrid_cli.installation import Installation
from docgrid_cli.trial import try_document
from docgrid_core.database import Database
from docgrid_core.errors import (
    DatabaseUnavailable,
    DocGridError,
    ProviderRefused,
    ProviderUnavailable,
    SettingsError,
    StorageMisconfigured,
    StorageUnavailable,
    VectorInvalid,
)
from docgrid_core.jobs import WORKER_LIVE
from docgrid_core.migrations import check_schema, check_server, head_revision
from docgrid_core.settings import (
    ChunkingSettings,
    LogSettings,
    MaintenanceSettings,
    ParsingSettings,
    StorageSettings,
    WorkerSettings,
    unknown_keys,
)
from docgrid_core.store import models, queries
from docgrid_core.testing.invariants import violations
from docgrid_pipeline.embeddings import Purpose

HINTS: dict[type[DocGridError], str] = {
    DatabaseUnavailable: "does it run, and does DOCGRID_DATABASE_URL lead to it?",
    StorageUnavailable: "does it run, and does DOCGRID_STORAGE_ENDPOINT lead to it?",
    ProviderUnavailable: "does it run, and does DOCGRID_EMBEDDING_BASE_URL lead to it?",
    ProviderRefused: "does it serve this model, and is DOCGRID_EMBEDDING_API_KEY right?",
    VectorInvalid: "does it serve this model, with this dimension?",
}
"""What to look at when a part does not do its work."""


class Verdict(StrEnum):
    """What a check comes to. A note is no fault, but worth knowing."""

    OK = "ok"
    NOTE = "note"
    FIX = "FIX"
    UNCHECKED = "unchecked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    part: str
    verdict: Verdict
    text: str


def check_everything(
    installation: Installation, *, deep: bool = False, document: bool = False
) -> Iterator[Finding]:
    """Yield a finding for each part.

    `deep` reads every table to check the invariants; `document` has a document indexed if all parts are in order.
    """
    sound = True
    for finding in _check_parts(installation, deep=deep):
        sound = sound and finding.verdict in {Verdict.OK, Verdict.NOTE}
        yield finding
    if document and not sound:
        yield Finding("document", Verdict.UNCHECKED, "needs the other parts")
    elif document:
        yield _judge("document", lambda: _check_document(installation))


def _check_parts(installation: Installation, *, deep: bool) -> Iterator[Finding]:
    yield _judge("settings", lambda: _check_settings(installation))
    yield _judge("object store", lambda: _check_objects(installation))
    try:
        with installation.database(checked=False) as db:
            versions = check_server(db)
            yield Finding(
                "database", Verdict.OK, f"PostgreSQL {versions.postgresql}, pgvector {versions.pgvector}"
            )
            yield from _check_in_database(installation, db, deep=deep)
    except DocGridError as error:
        yield _fault("database", error)
        for part in ("schema", "model", "embedding server"):
            yield Finding(part, Verdict.UNCHECKED, "needs the database")


def _check_in_database(installation: Installation, db: Database, *, deep: bool) -> Iterator[Finding]:
    schema = _judge("schema", lambda: _check_schema(db))
    yield schema
    if schema.verdict is not Verdict.OK:
        return
    yield _judge("model", lambda: _check_model(db))
    yield _judge("embedding server", lambda: _check_provider(installation, db))
    yield _check_workers(db)
    if deep:
        yield from _check_invariants(db)


def _judge(part: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(part, Verdict.OK, check())
    except DocGridError as error:
        return _fault(part, error)


def _fault(part: str, error: DocGridError) -> Finding:
    hint = HINTS.get(type(error))
    text = "; ".join(str(error).splitlines())
    return Finding(part, Verdict.FIX, f"{text} ({hint})" if hint else text)


def _check_settings(installation: Installation) -> str:
    for section in (WorkerSettings, MaintenanceSettings, ChunkingSettings, ParsingSettings, LogSettings):
        installation.load(section)
    unknown = unknown_keys()
    if unknown:
        raise SettingsError(f"no setting is called {', '.join(unknown)}: correct or unset it")
    return "of the local stack" if installation.stack else "of the environment"


def _check_objects(installation: Installation) -> str:
    bucket = installation.load(StorageSettings).bucket
    with installation.objects() as store:
        try:
            store.check()
        except StorageMisconfigured as error:
            if error.detail == "NoSuchBucket":
                raise SettingsError(
                    f"DOCGRID_STORAGE_BUCKET={bucket}: the object store has no such bucket: create it"
                ) from None
            raise
    return f"bucket {bucket}"


def _check_schema(db: Database) -> str:
    check_schema(db)
    return f"revision {head_revision()}"


def _check_model(db: Database) -> str:
    model = models.active_model(db)
    return f"{model.name} {model.version}, {model.dimension} dimensions"


def _check_provider(installation: Installation, db: Database) -> str:
    model = models.active_model(db)
    with installation.provider(model) as provider:
        started = time.monotonic()
        provider.embed(["a short text"], purpose=Purpose.QUERY)
        return f"embedded a short text in {1000 * (time.monotonic() - started):.0f} ms"


def _check_workers(db: Database) -> Finding:
    live = [worker for worker in queries.list_workers(db) if worker.effective_status in WORKER_LIVE]
    if not live:
        return Finding("workers", Verdict.NOTE, "none is running: nothing is indexed until one does")
    return Finding("workers", Verdict.OK, f"{len(live)} running")


def _check_document(installation: Installation) -> str:
    with installation.database() as db:
        return try_document(installation, db)


def _check_invariants(db: Database) -> Iterator[Finding]:
    found = violations(db)
    if not found:
        yield Finding("invariants", Verdict.OK, "every document, job and vector agrees with the others")
    for what, broken in groupby(found, key=lambda violation: (violation.invariant, violation.what)):
        subjects = ", ".join(violation.subject for violation in broken)
        yield Finding("invariants", Verdict.FIX, f"invariant {what[0]}: {subjects} {what[1]}")
