"""Registering and deleting documents: the transactions that start at a document.

They read the newest version and its job unlocked, lock Job → Version → Document, read again, and start over if
the job is another one by then. A version in flight is always its document's newest one.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from sqlalchemy import text

from docgrid_core.database import StartOver, Transaction, transactional
from docgrid_core.errors import BadParameter, DocumentNotFound, JobNotFound, VersionInProgress
from docgrid_core.jobs import (
    JOB_LIVE,
    VERSION_IN_FLIGHT,
    DocumentId,
    DocumentStatus,
    DocumentType,
    EventType,
    FailureType,
    JobId,
    JobStatus,
    ModelId,
    StorageProvider,
    VersionId,
    VersionStatus,
)
from docgrid_core.records import ObjectRef, Registration, RegistrationOutcome
from docgrid_core.retry import INFRASTRUCTURE
from docgrid_core.schema import MAX_SOURCE_URI_BYTES, MAX_TITLE
from docgrid_core.store import events
from docgrid_core.store.control import cancel_locked, retry_locked
from docgrid_core.store.models import lock_active_model
from docgrid_core.store.ownership import LockedJob, lock_document, lock_job, lock_version
from docgrid_core.store.workers import READ_CLOCK
from docgrid_core.text import clean

FIND_DOCUMENT = text("SELECT id FROM documents WHERE source_uri = :source_uri AND deleted_at IS NULL")

INSERT_DOCUMENT = text(
    """
    INSERT INTO documents (source_uri, title, document_type, status)
    VALUES (:source_uri, :title, :document_type, 'UPLOADED')
    ON CONFLICT (source_uri) WHERE deleted_at IS NULL DO NOTHING
    RETURNING id
    """
)

READ_NEWEST = text(
    """
    SELECT v.id, v.version_no, v.file_hash, v.status, j.id AS job_id, j.status AS job_status,
           j.embedding_model_id AS model_id, j.error_code, j.error_message,
           (SELECT failure_type FROM embedding_job_attempts WHERE embedding_job_id = j.id AND status = 'FAILED'
            ORDER BY attempt_no DESC LIMIT 1) AS failure_type
    FROM document_versions v
    LEFT JOIN LATERAL (
      SELECT * FROM embedding_jobs WHERE document_version_id = v.id ORDER BY id DESC LIMIT 1
    ) AS j ON true
    WHERE v.document_id = :document_id
    ORDER BY v.version_no DESC
    LIMIT 1
    """
)

READ_CURRENT = text(
    """
    SELECT v.id, v.version_no, v.file_hash
    FROM documents d JOIN document_versions v ON v.id = d.current_version_id AND v.status = 'INDEXED'
    WHERE d.id = :document_id
    """
)

# Registered last, after the document's lock: two documents with the same bytes wait for each other here alone.
UPSERT_OBJECT = text(
    """
    INSERT INTO file_objects
      (storage_provider, bucket_name, object_key, file_hash, file_size, content_type, original_filename, etag,
       object_version)
    VALUES (:provider, :bucket, :key, :sha256, :size, :content_type, :filename, :etag, :object_version)
    ON CONFLICT (storage_provider, bucket_name, object_key, file_hash)
    DO UPDATE SET etag = excluded.etag, object_version = excluded.object_version, updated_at = clock_timestamp()
    RETURNING id
    """
)

INSERT_VERSION = text(
    """
    INSERT INTO document_versions
      (document_id, version_no, file_object_id, original_filename, content_type, file_hash, status,
       created_at, updated_at)
    VALUES (:document_id, :version_no, :object_id, :filename, :content_type, :sha256, 'UPLOADED', :now, :now)
    RETURNING id
    """
)

# The first version is the current one from the start; the document's status hides it until it is INDEXED.
DESCRIBE_DOCUMENT = text(
    """
    UPDATE documents
    SET title = :title, document_type = :document_type, updated_at = :now,
        current_version_id = coalesce(current_version_id, :version_id)
    WHERE id = :document_id
    """
)

INSERT_JOB = text(
    """
    INSERT INTO embedding_jobs
      (document_version_id, embedding_model_id, status, priority, created_at, updated_at)
    VALUES (:version_id, :model_id, 'PENDING', :priority, :now, :now)
    RETURNING id
    """
)

DELETE_DOCUMENT = text(
    """
    WITH document AS (
      UPDATE documents SET status = 'DELETED', deleted_at = :now, updated_at = :now WHERE id = :document_id
    )
    UPDATE embeddings SET status = 'STALE'
    WHERE document_version_id IN (SELECT id FROM document_versions WHERE document_id = :document_id)
      AND status = 'ACTIVE'
    """
)

FIND_SOURCE = text(
    """
    SELECT f.storage_provider, f.bucket_name, f.object_key, f.file_hash, f.file_size, f.content_type,
           f.original_filename, f.etag, f.object_version
    FROM documents d
    JOIN document_versions v ON v.document_id = d.id
    JOIN file_objects f ON f.id = v.file_object_id
    WHERE d.source_uri = :source_uri AND d.deleted_at IS NULL
    ORDER BY v.version_no DESC
    LIMIT 1
    """
)

MAX_PRIORITY = 1_000_000


@dataclass(frozen=True, slots=True)
class Source:
    """A document as its caller names it, and the bytes to index now."""

    source_uri: str
    title: str
    document_type: DocumentType
    object: ObjectRef
    priority: int = 0


@dataclass(frozen=True, slots=True)
class NewestVersion:
    """The newest version of a document and its job (None once it is pruned)."""

    id: VersionId
    version_no: int
    sha256: str
    status: VersionStatus
    job_id: JobId | None
    job_status: JobStatus | None
    model_id: ModelId | None
    error_code: str | None
    error_message: str | None
    failure_type: FailureType | None

    @property
    def is_in_flight(self) -> bool:
        """Tell whether it is still on its way to being searchable."""
        return self.status in VERSION_IN_FLIGHT


class Action(StrEnum):
    """What registering does, once whatever is in its way has been canceled."""

    CREATE = "CREATE"
    KEEP_CURRENT = "KEEP_CURRENT"
    KEEP_IN_FLIGHT = "KEEP_IN_FLIGHT"
    RETRY = "RETRY"
    KEEP_FAILED = "KEEP_FAILED"


def decide(
    newest: NewestVersion,
    *,
    current_sha256: str | None,
    sha256: str,
    model_id: ModelId,
    supersede: bool,
    force: bool,
) -> Action:
    """Return what registering these bytes means for a document that exists. Pure.

    Raises `VersionInProgress` when other bytes are being indexed and must not be superseded.
    """
    if newest.is_in_flight:
        if newest.sha256 == sha256:
            return Action.KEEP_IN_FLIGHT
        if not supersede:
            raise VersionInProgress(
                f"version {newest.version_no} of the document is being indexed: wait for it or supersede it"
            )
    if force:
        return Action.CREATE
    if current_sha256 == sha256:
        return Action.KEEP_CURRENT
    if newest.status is not VersionStatus.FAILED or newest.sha256 != sha256 or newest.failure_type is None:
        return Action.CREATE
    if newest.failure_type in INFRASTRUCTURE:
        # A job keeps its model: one of a model that was replaced can not be retried.
        return Action.RETRY if newest.model_id == model_id else Action.CREATE
    # Rows that disagreed are not used again: the same bytes start afresh.
    return (
        Action.CREATE
        if newest.failure_type is FailureType.INDEXING_STATE_INCONSISTENT
        else Action.KEEP_FAILED
    )


@transactional
def register(
    tx: Transaction, source: Source, *, supersede: bool = False, force: bool = False, by: str = "ingest"
) -> Registration:
    """Register bytes for a document, new or known, and queue what has to be indexed.

    Raises `BadParameter`, `ModelNotSearchable`, and `VersionInProgress` as `decide` does.
    """
    _validate(source)
    model = lock_active_model(tx)
    document_id = tx.execute(FIND_DOCUMENT, source_uri=source.source_uri).scalar()
    if document_id is None:
        return _register_new(tx, source, model.id)
    try:
        newest, job = _lock_newest(tx, DocumentId(document_id))
    except DocumentNotFound:  # deleted since it was found: its URI is free again
        raise StartOver from None
    current = tx.execute(READ_CURRENT, document_id=document_id).one_or_none()
    action = decide(
        newest,
        current_sha256=None if current is None else current.file_hash,
        sha256=source.object.sha256,
        model_id=model.id,
        supersede=supersede,
        force=force,
    )
    if job is not None and newest.is_in_flight and action is not Action.KEEP_IN_FLIGHT:
        cancel_locked(tx, job, lock_version(tx, newest.id), reason="superseded by newer content", by=by)
    if action is Action.CREATE:
        return _create_version(tx, source, DocumentId(document_id), newest.version_no + 1, model.id)
    if action is Action.KEEP_CURRENT and current is not None:
        return Registration(
            RegistrationOutcome.UNCHANGED, document_id, current.id, current.version_no, None, None
        )
    if action is Action.RETRY and job is not None:
        retry_locked(tx, job, lock_version(tx, newest.id), reason="registered again", by=by)
        newest = replace(newest, job_status=JobStatus.PENDING)
    outcome = {
        Action.KEEP_IN_FLIGHT: RegistrationOutcome.IN_PROGRESS,
        Action.RETRY: RegistrationOutcome.RETRIED,
    }.get(action, RegistrationOutcome.FAILED)
    reason = f"{newest.error_code}: {newest.error_message}" if action is Action.KEEP_FAILED else None
    return Registration(
        outcome, document_id, newest.id, newest.version_no, newest.job_id, newest.job_status, reason
    )


@transactional
def delete(tx: Transaction, document_id: DocumentId, *, reason: str, by: str) -> None:
    """Delete a document: gone from search with the commit, its live job canceled, its vectors STALE.

    Raises `DocumentNotFound`, also for one that is deleted already.
    """
    newest, job = _lock_newest(tx, document_id)
    if job is not None and job.status in JOB_LIVE:
        cancel_locked(tx, job, lock_version(tx, newest.id), reason=reason or "document deleted", by=by)
    now = tx.execute(READ_CLOCK).scalar_one() if job is None else job.now
    tx.execute(DELETE_DOCUMENT, document_id=document_id, now=now)


@transactional
def find_source(tx: Transaction, source_uri: str) -> ObjectRef | None:
    """Return the bytes of the newest version registered under `source_uri`, if any."""
    row = tx.execute(FIND_SOURCE, source_uri=source_uri).one_or_none()
    return None if row is None else ObjectRef(StorageProvider(row[0]), *row[1:])


def _validate(source: Source) -> None:
    if not source.source_uri or len(source.source_uri.encode(errors="replace")) > MAX_SOURCE_URI_BYTES:
        raise BadParameter(f"a source URI has 1 to {MAX_SOURCE_URI_BYTES} bytes")
    if clean(source.source_uri) != source.source_uri:
        raise BadParameter("a source URI holds neither NUL nor half a surrogate pair")
    if abs(source.priority) > MAX_PRIORITY:
        raise BadParameter(f"a priority lies between -{MAX_PRIORITY} and {MAX_PRIORITY}")


def _read_newest(tx: Transaction, document_id: DocumentId) -> NewestVersion:
    row = tx.execute(READ_NEWEST, document_id=document_id).one_or_none()
    if row is None:
        raise DocumentNotFound(f"there is no document {document_id}")
    return NewestVersion(
        id=row.id,
        version_no=row.version_no,
        sha256=row.file_hash,
        status=VersionStatus(row.status),
        job_id=row.job_id,
        job_status=None if row.job_status is None else JobStatus(row.job_status),
        model_id=row.model_id,
        error_code=row.error_code,
        error_message=row.error_message,
        failure_type=None if row.failure_type is None else FailureType(row.failure_type),
    )


def _lock_newest(tx: Transaction, document_id: DocumentId) -> tuple[NewestVersion, LockedJob | None]:
    """Lock the newest version's job, that version and the document, in this order; read the version anew."""
    expected = _read_newest(tx, document_id)
    try:
        job = None if expected.job_id is None else lock_job(tx, expected.job_id)
    except JobNotFound:  # pruned since it was read
        raise StartOver from None
    lock_version(tx, expected.id)
    document = lock_document(tx, document_id)
    if document.status is DocumentStatus.DELETED:
        raise DocumentNotFound(f"document {document_id} is deleted")
    newest = _read_newest(tx, document_id)
    if (newest.id, newest.job_id) != (expected.id, expected.job_id):
        raise StartOver
    return newest, job


def _register_new(tx: Transaction, source: Source, model_id: ModelId) -> Registration:
    document_id = tx.execute(
        INSERT_DOCUMENT,
        source_uri=source.source_uri,
        title=clean(source.title)[:MAX_TITLE],
        document_type=source.document_type,
    ).scalar()
    if document_id is None:  # somebody registered it while this statement waited
        raise StartOver
    return _create_version(tx, source, DocumentId(document_id), 1, model_id)


def _create_version(
    tx: Transaction, source: Source, document_id: DocumentId, version_no: int, model_id: ModelId
) -> Registration:
    now: datetime = tx.execute(READ_CLOCK).scalar_one()
    item = source.object
    object_id = tx.execute(
        UPSERT_OBJECT,
        provider=item.provider,
        bucket=item.bucket,
        key=item.key,
        sha256=item.sha256,
        size=item.size,
        content_type=clean(item.content_type),
        filename=clean(item.filename),
        etag=item.etag,
        object_version=item.object_version,
    ).scalar_one()
    version_id = tx.execute(
        INSERT_VERSION,
        document_id=document_id,
        version_no=version_no,
        object_id=object_id,
        filename=clean(item.filename),
        content_type=clean(item.content_type),
        sha256=item.sha256,
        now=now,
    ).scalar_one()
    tx.execute(
        DESCRIBE_DOCUMENT,
        document_id=document_id,
        version_id=version_id,
        title=clean(source.title)[:MAX_TITLE],
        document_type=source.document_type,
        now=now,
    )
    job_id = JobId(
        tx.execute(
            INSERT_JOB, version_id=version_id, model_id=model_id, priority=source.priority, now=now
        ).scalar_one()
    )
    events.record(tx, job_id, EventType.JOB_CREATED, (None, JobStatus.PENDING), at=now)
    tx.announce_ready(model_id)
    return Registration(
        RegistrationOutcome.CREATED, document_id, version_id, version_no, job_id, JobStatus.PENDING
    )
