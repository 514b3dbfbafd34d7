"""The trial document of `docgrid doctor --document`: registered, indexed by a worker, found by a search, deleted.

It proves what no look at the single parts can: that workers serve the active model, read what is uploaded here, and
embed with the same model as the searches. Whatever comes of it, the document is deleted at the end.
"""

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from docgrid_cli.advice import ADVICE
from docgrid_cli.commands.search import ask
from docgrid_cli.installation import Installation
from docgrid_core.database import Database
from docgrid_core.errors import Busy, DocGridError, DocumentNotFound
from docgrid_core.jobs import JOB_LIVE, DocumentId, DocumentType, JobId, JobStatus
from docgrid_core.records import Registration
from docgrid_core.store import documents
from docgrid_core.store.documents import MAX_PRIORITY, Source
from docgrid_core.store.queries import JobDetail, JobSummary, show_job
from docgrid_core.store.search import MAX_TOP_K

PATIENCE = 120.0
"""Seconds within which a worker has to index it: it goes before all other jobs, and is a few lines long."""

SOURCE = "docgrid-doctor/"
"""How the addresses of trial documents begin; each run has one of its own, so several at once are no trouble."""

TEXT = """\
Trial document of docgrid doctor.

It was registered to see whether documents are indexed and found here. It is deleted at the end of the trial.
"""
_INTERVAL = 0.5  # seconds
_CLEANING = 30.0  # seconds
_BY = "docgrid doctor"


class TrialFailed(DocGridError):
    """The trial document was not indexed or not found; the text says what to look at."""

    def __str__(self) -> str:
        return self.message


def try_document(installation: Installation, db: Database) -> str:
    """Have a document of its own indexed, found and deleted; return what was seen, or raise what is wrong."""
    started = time.monotonic()
    with _sigterm_as_interrupt():
        made = _register(installation, db)
        try:
            job = _wait(db, _job_of(made), until=started + PATIENCE)
            took = time.monotonic() - started
            score = _search(installation, made.document_id)
        finally:
            _delete(db, made.document_id)
    worker = job.attempts[-1].worker_name
    return f"indexed by {worker} in {took:.1f} s, found with score {score:.2f}, deleted again"


def _register(installation: Installation, db: Database) -> Registration:
    with tempfile.TemporaryDirectory(prefix="docgrid-") as folder, installation.objects() as objects:
        path = Path(folder, "trial.txt")
        path.write_text(TEXT, encoding="utf-8")
        item = objects.put(path, content_type="text/plain", max_size=len(TEXT))
    source = Source(f"{SOURCE}{uuid4()}", "docgrid doctor", DocumentType.TXT, item, MAX_PRIORITY)
    return documents.register(db, source, by=_BY)


def _job_of(made: Registration) -> JobId:
    if made.job_id is None:
        raise AssertionError("a new document has a job")
    return made.job_id


def _wait(db: Database, job_id: JobId, *, until: float) -> JobDetail:
    """Return the job once it is INDEXED; raises `TrialFailed` when it ends otherwise, or not in time."""
    while True:
        detail = show_job(db, job_id)
        if detail.job.status is JobStatus.INDEXED:
            return detail
        if detail.job.status not in JOB_LIVE:
            raise TrialFailed(_explain_end(detail.job))
        if time.monotonic() >= until:
            raise TrialFailed(_explain_delay(detail))
        time.sleep(_INTERVAL)


def _explain_end(job: JobSummary) -> str:
    if job.failure_type is None:
        return f"the job of the trial document is {job.status}: somebody has canceled it"
    advice = ADVICE[job.failure_type].format(job=job.id)
    return f"the trial document was not indexed: {job.error_code}: {job.error_message}. {advice}"


def _explain_delay(detail: JobDetail) -> str:
    limit, job = f"within {PATIENCE:.0f} s", detail.job
    if job.error_code:  # of an attempt that is to be repeated
        worker = detail.attempts[-1].worker_name
        return f"the trial document was not indexed {limit}: {job.error_code}: {job.error_message} (worker {worker})"
    if job.status is JobStatus.PENDING:
        return (
            f"no worker took the trial document {limit}: see with `docgrid workers list` whether one is there for"
            f" the model {job.model} and has nothing else to do"
        )
    return f"the worker {job.worker_name} did not end with the trial document {limit}: see its log"


def _search(installation: Installation, document_id: DocumentId) -> float:
    """Search for the document by its own words and return its score; raises `TrialFailed` if it is not found."""
    for hit in ask(installation, TEXT, top_k=MAX_TOP_K):
        if hit.document_id == document_id:
            return hit.score
    raise TrialFailed(
        "the trial document was indexed, but a search does not find it: do the workers embed by the same server"
        " and model as DOCGRID_EMBEDDING_… says here?"
    )


def _delete(db: Database, document_id: DocumentId) -> None:
    """Delete the document; a worker that stores its vectors at the moment is waited for."""
    give_up_at = time.monotonic() + _CLEANING
    while True:
        try:
            return documents.delete(db, document_id, reason="the trial is over", by=_BY)
        except DocumentNotFound:  # somebody was quicker
            return None
        except Busy:
            if time.monotonic() >= give_up_at:
                raise
            time.sleep(_INTERVAL)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does, so that the document is deleted: PID 1 would ignore it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
