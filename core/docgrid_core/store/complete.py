"""Completion: the one transaction that makes a version searchable.

Before its commit search sees the old version, after it the new one; never both, never neither.
"""

from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.errors import (
    AttemptMismatch,
    CompletionNotAllowed,
    IndexingSetInconsistent,
    JobOwnershipLost,
    NewerVersionExists,
)
from docgrid_core.jobs import AttemptStatus, DocumentStatus, EventType, JobStatus, VersionStatus
from docgrid_core.records import Completion, EmbeddingModel, Ownership
from docgrid_core.store import events
from docgrid_core.store.models import model_by_id
from docgrid_core.store.ownership import (
    LockedDocument,
    LockedJob,
    LockedVersion,
    lock_document,
    lock_job,
    lock_version,
    read_attempt,
    require_started,
)

READ_FAMILY = text(
    """
    SELECT (SELECT max(version_no) FROM document_versions WHERE document_id = :document_id) AS newest_no,
           (SELECT document_id FROM document_versions WHERE id = :current_version_id) AS current_owner
    """
)

READ_DOCUMENT_ID = text("SELECT document_id FROM document_versions WHERE id = :version_id")

VERIFY_SET = text(
    """
    SELECT (SELECT count(*) FROM document_chunks WHERE document_version_id = :version_id) AS chunks,
           count(*) AS embeddings,
           count(*) FILTER (WHERE e.status = 'ACTIVE') AS active,
           count(*) FILTER (
             WHERE e.document_id <> :document_id OR c.document_version_id IS DISTINCT FROM :version_id
                OR vector_dims(e.vector) <> :dimension OR e.vector_hash = '') AS wrong
    FROM embeddings e LEFT JOIN document_chunks c ON c.id = e.chunk_id
    WHERE e.embedding_model_id = :model_id AND e.document_version_id = :version_id
    """
)

# One statement for the whole switch; every row that it changes is locked, or belongs to one that is.
SWITCH = text(
    """
    WITH attempt AS (
      UPDATE embedding_job_attempts
      SET status = 'SUCCESS', ended_at = :now, updated_at = :now,
          duration_ms = extract(epoch FROM :now - started_at) * 1000
      WHERE id = :attempt_id
    ), job AS (
      UPDATE embedding_jobs
      SET status = 'INDEXED', completed_at = :now, updated_at = :now, suspect = false,
          error_code = NULL, error_message = NULL
      WHERE id = :job_id
    ), version AS (
      UPDATE document_versions SET status = 'INDEXED', indexed_at = :now, updated_at = :now
      WHERE id = :version_id
    ), document AS (
      UPDATE documents SET status = 'INDEXED', current_version_id = :version_id, updated_at = :now
      WHERE id = :document_id
    )
    UPDATE embeddings SET status = 'STALE'
    WHERE document_version_id = :previous_version_id AND :previous_version_id <> :version_id
      AND status = 'ACTIVE'
    """
)


@transactional
def complete(tx: Transaction, own: Ownership) -> Completion:
    """Verify the version's whole set and switch its document to it.

    The same completion again returns the stored values, whatever the lease is by then. Raises what `enter`
    raises; `CompletionNotAllowed`, `NewerVersionExists` or `IndexingSetInconsistent` change nothing.
    """
    # 1. A finished job answers its own claim, and refuses any other.
    job = lock_job(tx, own.job_id)
    if job.status is JobStatus.INDEXED:
        return _replay(tx, job, own)
    # 2. Fence, then the other locks in their order.
    job.require_owner(own.worker_id, own.token)
    attempt = require_started(read_attempt(tx, own), own)
    version = lock_version(tx, job.version_id)
    document = lock_document(tx, version.document_id)
    # 3. and 4. Everything that must hold before anyone may see the version.
    model = model_by_id(tx, job.model_id)
    _require_allowed(tx, model, version, document)
    _require_whole_set(tx, model, version)
    # 5. The switch, at one time for all.
    tx.execute(
        SWITCH,
        now=job.now,
        attempt_id=attempt.id,
        job_id=job.id,
        version_id=version.id,
        document_id=document.id,
        previous_version_id=document.current_version_id,
    )
    events.record(
        tx,
        job.id,
        EventType.INDEXED,
        (JobStatus.PROCESSING, JobStatus.INDEXED),
        at=job.now,
        attempt_no=attempt.number,
    )
    return Completion(job.id, attempt.id, document.id, version.id, job.now)


def _replay(tx: Transaction, job: LockedJob, own: Ownership) -> Completion:
    if job.worker_id != own.worker_id or job.token != own.token.value or job.completed_at is None:
        raise JobOwnershipLost(f"job {job.id} was completed by another claim")
    attempt = read_attempt(tx, own)
    if attempt is None or attempt.status is not AttemptStatus.SUCCESS:
        raise AttemptMismatch(f"attempt {own.attempt_id} did not complete job {job.id}")
    document_id = tx.execute(READ_DOCUMENT_ID, version_id=job.version_id).scalar_one()
    return Completion(job.id, attempt.id, document_id, job.version_id, job.completed_at)


def _require_allowed(
    tx: Transaction, model: EmbeddingModel, version: LockedVersion, document: LockedDocument
) -> None:
    if not (model.is_active and model.is_searchable):
        raise CompletionNotAllowed(f"model {model.id} is no longer active and searchable")
    if version.status is not VersionStatus.EMBEDDING:
        raise CompletionNotAllowed(f"version {version.id} is {version.status}")
    if document.status is DocumentStatus.DELETED:
        raise CompletionNotAllowed(f"document {document.id} is deleted")
    family = tx.execute(
        READ_FAMILY, document_id=document.id, current_version_id=document.current_version_id
    ).one()
    if family.current_owner not in {None, document.id}:
        raise IndexingSetInconsistent(f"the current version of document {document.id} is another document's")
    if family.newest_no != version.version_no:
        raise NewerVersionExists(f"document {document.id} has version {family.newest_no} already")


def _require_whole_set(tx: Transaction, model: EmbeddingModel, version: LockedVersion) -> None:
    found = tx.execute(
        VERIFY_SET,
        version_id=version.id,
        document_id=version.document_id,
        model_id=model.id,
        dimension=model.dimension,
    ).one()
    if found.chunks == 0 or not found.chunks == found.embeddings == found.active or found.wrong:
        raise IndexingSetInconsistent(
            f"version {version.id}: {found.chunks} chunks, {found.embeddings} embeddings,"
            f" {found.active} ACTIVE, {found.wrong} wrong"
        )
