"""Parse and chunk: the transactions before and after the worker reads and cuts a document."""

from collections.abc import Sequence
from datetime import timedelta

from psycopg.types.json import Jsonb
from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.errors import BadParameter, ChunkingNotAllowed, EmbeddingSetInconsistent
from docgrid_core.jobs import (
    DocumentStatus,
    DocumentType,
    EventType,
    JobStatus,
    StorageProvider,
    VersionStatus,
)
from docgrid_core.records import NewChunk, ObjectRef, Ownership, ParseTask
from docgrid_core.store import events
from docgrid_core.store.leases import renew_own
from docgrid_core.store.ownership import LockedVersion, enter, lock_document, lock_version
from docgrid_core.text import clean, clean_json

IN_PROCESSING = (JobStatus.PROCESSING, JobStatus.PROCESSING)

COUNT_CHUNKS = text("SELECT count(*) FROM document_chunks WHERE document_version_id = :version_id")

SET_VERSION = text("UPDATE document_versions SET status = :status, updated_at = :now WHERE id = :version_id")

START_DOCUMENT = text(
    """
    UPDATE documents SET status = 'INDEXING', updated_at = :now
    WHERE id = :document_id AND status IN ('UPLOADED', 'FAILED')
    """
)

READ_SOURCE = text(
    """
    SELECT f.storage_provider, f.bucket_name, f.object_key, f.file_hash, f.file_size, f.content_type,
           f.original_filename, f.etag, f.object_version, :now - v.created_at AS age
    FROM document_versions v JOIN file_objects f ON f.id = v.file_object_id
    WHERE v.id = :version_id
    """
)

CREATE_STAGING = text(
    """
    CREATE TEMPORARY TABLE staged_chunks (
      chunk_index int, chunk_text text, token_count int, char_start int, char_end int, page_no int,
      section_title text, content_hash text, metadata jsonb
    ) ON COMMIT DROP
    """
)
COPY_STAGING = "COPY staged_chunks FROM STDIN (FORMAT BINARY)"
STAGING_TYPES = ("int4", "text", "int4", "int4", "int4", "int4", "text", "text", "jsonb")

INSERT_CHUNKS = text(
    """
    INSERT INTO document_chunks
      (document_version_id, chunk_index, chunk_text, token_count, char_start, char_end, page_no, section_title,
       content_hash, metadata, created_at, updated_at)
    SELECT :version_id, chunk_index, chunk_text, token_count, char_start, char_end, page_no, section_title,
           content_hash, metadata, :now, :now
    FROM staged_chunks ORDER BY chunk_index
    """
)


@transactional
def prepare(tx: Transaction, own: Ownership) -> ParseTask | None:
    """Begin the parse stage; return what to read, or None: the chunks are stored already.

    Raises what `enter` raises, `ChunkingNotAllowed` in a later state, `EmbeddingSetInconsistent` when chunks
    and state disagree.
    """
    job, attempt = enter(tx, own)
    version = lock_version(tx, job.version_id)
    if _is_chunked(tx, version):
        return None
    document = lock_document(tx, version.document_id)
    if document.status is DocumentStatus.DELETED:
        raise ChunkingNotAllowed(f"document {document.id} is deleted")
    if version.status is VersionStatus.UPLOADED:
        tx.execute(SET_VERSION, version_id=version.id, status=VersionStatus.PARSING, now=job.now)
        tx.execute(START_DOCUMENT, document_id=document.id, now=job.now)
        events.record(
            tx, job.id, EventType.PARSE_STARTED, IN_PROCESSING, at=job.now, attempt_no=attempt.number
        )
    row = tx.execute(READ_SOURCE, version_id=version.id, now=job.now).one()
    source = ObjectRef(StorageProvider(row[0]), *row[1:9])
    return ParseTask(source, DocumentType(document.document_type), row.age)


@transactional
def store(tx: Transaction, own: Ownership, chunks: Sequence[NewChunk], *, lease_duration: timedelta) -> None:
    """Store the chunks of a version, all or none, and renew the job's lease.

    A version that has its chunks already is left as it is. Raises as `prepare` does.
    """
    if not chunks:
        raise BadParameter("a version without chunks can not be stored")
    # 1. The chunks are on the server before any lock is taken: a stalled COPY holds up nobody.
    tx.execute(CREATE_STAGING)
    tx.copy_in(COPY_STAGING, STAGING_TYPES, (_row(chunk) for chunk in chunks))
    # 2. Locks and fence.
    job, attempt = enter(tx, own)
    version = lock_version(tx, job.version_id)
    if _is_chunked(tx, version):
        return
    if version.status is not VersionStatus.PARSING:
        raise ChunkingNotAllowed(f"version {version.id} is {version.status}")
    # 3. One server-side statement, then the state and its event.
    tx.execute(INSERT_CHUNKS, version_id=version.id, now=job.now)
    tx.execute(SET_VERSION, version_id=version.id, status=VersionStatus.CHUNKED, now=job.now)
    events.record(
        tx,
        job.id,
        EventType.CHUNKED,
        IN_PROCESSING,
        at=job.now,
        attempt_no=attempt.number,
        chunks=len(chunks),
    )
    renew_own(tx, job, lease_duration)


def _is_chunked(tx: Transaction, version: LockedVersion) -> bool:
    """Tell whether the version's chunks are stored; raise if it can not be chunked or its rows disagree."""
    if version.status not in {VersionStatus.UPLOADED, VersionStatus.PARSING, VersionStatus.CHUNKED}:
        raise ChunkingNotAllowed(f"version {version.id} is {version.status}")
    chunks = tx.execute(COUNT_CHUNKS, version_id=version.id).scalar_one()
    if (chunks > 0) != (version.status is VersionStatus.CHUNKED):
        raise EmbeddingSetInconsistent(f"version {version.id} is {version.status} with {chunks} chunks")
    return version.status is VersionStatus.CHUNKED


def _row(chunk: NewChunk) -> tuple[object, ...]:
    return (
        chunk.index,
        clean(chunk.text),
        chunk.token_count,
        chunk.char_start,
        chunk.char_end,
        chunk.page_no,
        None if chunk.section_title is None else clean(chunk.section_title),
        chunk.content_hash,
        Jsonb(clean_json(chunk.metadata)),
    )
