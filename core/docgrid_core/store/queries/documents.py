"""The list of documents, and one document with its versions. Deleted documents are not shown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.errors import DocumentNotFound
from docgrid_core.jobs import (
    DocumentId,
    DocumentStatus,
    DocumentType,
    JobId,
    JobStatus,
    VersionId,
    VersionStatus,
)
from docgrid_core.store.queries.answers import COUNT_LIMIT, Page, build, capped, check_page, read_snapshot

MAX_VERSIONS = 100

# The order and the condition of the unique index over live source URIs.
LIST_IDS = text(
    "SELECT id FROM documents WHERE deleted_at IS NULL ORDER BY source_uri LIMIT :limit OFFSET :offset"
)

DESCRIBE = text(
    """
    SELECT d.id, d.source_uri, d.title, d.document_type, d.status, newest.version_no AS newest_version_no,
           newest.status AS newest_version_status, current.version_no AS current_version_no, current.indexed_at,
           d.created_at, d.updated_at
    FROM documents d
    CROSS JOIN LATERAL (
      SELECT version_no, status FROM document_versions
      WHERE document_id = d.id ORDER BY version_no DESC LIMIT 1
    ) AS newest
    LEFT JOIN document_versions current ON current.id = d.current_version_id AND current.status = 'INDEXED'
    WHERE d.id = ANY (CAST(:ids AS bigint[])) AND d.deleted_at IS NULL
    """
)

VERSIONS = text(
    """
    SELECT v.id, v.version_no, v.status, v.id = d.current_version_id AND v.status = 'INDEXED' AS is_current,
           v.original_filename AS filename, v.content_type, v.file_hash, f.file_size, v.created_at, v.indexed_at,
           j.id AS job_id, j.status AS job_status, j.error_code, j.error_message
    FROM documents d
    JOIN document_versions v ON v.document_id = d.id
    JOIN file_objects f ON f.id = v.file_object_id
    LEFT JOIN LATERAL (
      SELECT id, status, error_code, error_message FROM embedding_jobs
      WHERE document_version_id = v.id ORDER BY id DESC LIMIT 1
    ) AS j ON true
    WHERE d.id = :document_id
    ORDER BY v.version_no DESC
    LIMIT :limit
    """
)

COUNT_CHUNKS = text(
    """
    SELECT count(*) FROM documents d
    JOIN document_versions v ON v.id = d.current_version_id AND v.status = 'INDEXED'
    JOIN document_chunks c ON c.document_version_id = v.id
    WHERE d.id = :document_id
    """
)


@dataclass(frozen=True, slots=True)
class DocumentSummary:
    """One document; `current_version_no` is the version that search sees, None while there is none."""

    id: DocumentId
    source_uri: str = field(repr=False)
    title: str = field(repr=False)
    document_type: DocumentType
    status: DocumentStatus
    newest_version_no: int
    newest_version_status: VersionStatus
    current_version_no: int | None
    indexed_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class VersionView:
    """One version and its last job (None once it is pruned)."""

    id: VersionId
    version_no: int
    status: VersionStatus
    is_current: bool
    filename: str = field(repr=False)
    content_type: str
    file_hash: str
    file_size: int
    created_at: datetime
    indexed_at: datetime | None
    job_id: JobId | None
    job_status: JobStatus | None
    error_code: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class DocumentDetail:
    """One document with its newest 100 versions, newest first, and the chunks of the current one."""

    document: DocumentSummary
    chunk_count: int
    versions: tuple[VersionView, ...]


@transactional
def list_documents(tx: Transaction, *, page: int = 0, size: int = 50) -> Page[DocumentSummary]:
    """Return one page of the documents, by source URI; raises `BadParameter` for an impossible page."""
    check_page(page, size)
    read_snapshot(tx)
    ids = tx.execute(LIST_IDS, limit=size, offset=page * size).scalars().all()
    counted = len(tx.execute(LIST_IDS, limit=COUNT_LIMIT + 1, offset=0).all())
    return Page(_describe(tx, ids), page, size, capped(counted))


@transactional
def show_document(tx: Transaction, document_id: DocumentId) -> DocumentDetail:
    """Return a document with its versions; raises `DocumentNotFound`, for a deleted one too."""
    read_snapshot(tx)
    found = _describe(tx, [document_id])
    if not found:
        raise DocumentNotFound(f"there is no document {document_id}")
    chunk_count = tx.execute(COUNT_CHUNKS, document_id=document_id).scalar_one()
    versions = tx.execute(VERSIONS, document_id=document_id, limit=MAX_VERSIONS).mappings()
    return DocumentDetail(
        found[0],
        chunk_count,
        tuple(build(VersionView, row, status=VersionStatus, job_status=JobStatus) for row in versions),
    )


def _describe(tx: Transaction, ids: Sequence[int]) -> tuple[DocumentSummary, ...]:
    states = {
        "document_type": DocumentType,
        "status": DocumentStatus,
        "newest_version_status": VersionStatus,
    }
    rows = tx.execute(DESCRIBE, ids=list(ids)).mappings()
    found = {row["id"]: build(DocumentSummary, row, **states) for row in rows}
    return tuple(found[document_id] for document_id in ids if document_id in found)
