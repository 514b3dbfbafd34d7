"""Embed: the transactions before and after the worker asks the provider for a version's vectors."""

import hashlib
from collections.abc import Iterator
from datetime import timedelta

from pgvector import Vector
from sqlalchemy import text

from docgrid_core.database import Transaction, transactional
from docgrid_core.errors import EmbeddingNotAllowed, EmbeddingSetInconsistent
from docgrid_core.jobs import EventType, ModelId, VersionStatus
from docgrid_core.records import EmbedTask, Ownership, StoredChunk
from docgrid_core.store import events
from docgrid_core.store.leases import renew_own
from docgrid_core.store.models import model_by_id
from docgrid_core.store.ownership import LockedVersion, enter, lock_version
from docgrid_core.store.parse import IN_PROCESSING, SET_VERSION
from docgrid_core.vectors import Vectors, check_vectors

READ_CHUNKS = text(
    """
    SELECT id, chunk_index, chunk_text, content_hash
    FROM document_chunks WHERE document_version_id = :version_id ORDER BY chunk_index
    """
)

COUNT_ACTIVE = text(
    """
    SELECT count(*) FROM embeddings
    WHERE embedding_model_id = :model_id AND document_version_id = :version_id AND status = 'ACTIVE'
    """
)

CREATE_STAGING = text(
    """
    CREATE TEMPORARY TABLE staged_embeddings (
      chunk_id bigint, chunk_index int, content_hash text, vector vector, vector_hash text
    ) ON COMMIT DROP
    """
)
COPY_STAGING = "COPY staged_embeddings FROM STDIN (FORMAT BINARY)"
STAGING_TYPES = ("int8", "int4", "text", "vector", "text")

# What was embedded must be exactly what is stored: the same chunks, in the same order, with the same text.
COMPARE_SNAPSHOT = text(
    """
    SELECT count(*)
    FROM (SELECT * FROM document_chunks WHERE document_version_id = :version_id) AS c
    FULL JOIN staged_embeddings s ON s.chunk_id = c.id
    WHERE (s.chunk_index, s.content_hash) IS DISTINCT FROM (c.chunk_index, c.content_hash)
    """
)

DELETE_STALE = text(
    """
    DELETE FROM embeddings
    WHERE embedding_model_id = :model_id AND document_version_id = :version_id AND status = 'STALE'
    """
)

INSERT_EMBEDDINGS = text(
    """
    INSERT INTO embeddings
      (chunk_id, embedding_model_id, document_id, document_version_id, vector, vector_hash, status, created_at)
    SELECT chunk_id, :model_id, :document_id, :version_id, vector, vector_hash, 'ACTIVE', :now
    FROM staged_embeddings ORDER BY chunk_index
    """
)


@transactional
def prepare(tx: Transaction, own: Ownership) -> EmbedTask | None:
    """Begin the embed stage; return the chunks to embed, or None: a whole set of vectors is stored already.

    Raises what `enter` raises, `EmbeddingNotAllowed` in another state, `EmbeddingSetInconsistent` when the
    stored chunks or vectors are not a whole set.
    """
    job, attempt = enter(tx, own)
    version = lock_version(tx, job.version_id)
    rows = tx.execute(READ_CHUNKS, version_id=version.id)
    chunks = tuple(StoredChunk(*row) for row in rows)
    if not chunks or chunks[-1].index != len(chunks) - 1 or chunks[0].index != 0:
        raise EmbeddingSetInconsistent(f"the chunks of version {version.id} are not contiguous from 0")
    if _is_embedded(tx, version, job.model_id, len(chunks)):
        return None
    if version.status is VersionStatus.CHUNKED:
        tx.execute(SET_VERSION, version_id=version.id, status=VersionStatus.EMBEDDING, now=job.now)
        events.record(
            tx, job.id, EventType.EMBEDDING_STARTED, IN_PROCESSING, at=job.now, attempt_no=attempt.number
        )
    return EmbedTask(chunks, model_by_id(tx, job.model_id))


@transactional
def store(
    tx: Transaction,
    own: Ownership,
    task: EmbedTask,
    vectors: Vectors,
    *,
    lease_duration: timedelta,
    timeout: timedelta,
) -> None:
    """Store a version's vectors (chunks × dimension), all or none, and renew the job's lease.

    `timeout` bounds the insert, which builds the index as it goes. Raises as `prepare` does, and
    `VectorInvalid` for a vector of another dimension, one that is not finite, or one that is all zero.
    """
    vectors = check_vectors(vectors, count=len(task.chunks), dimension=task.model.dimension)
    # 1. The vectors are on the server before any lock is taken: a stalled COPY holds up nobody.
    tx.limit_statements(timeout)
    tx.execute(CREATE_STAGING)
    tx.copy_in(COPY_STAGING, STAGING_TYPES, _rows(task, vectors))
    # 2. Locks and fence.
    job, _attempt = enter(tx, own)
    version = lock_version(tx, job.version_id)
    if _is_embedded(tx, version, job.model_id, len(task.chunks)):
        return
    if version.status is not VersionStatus.EMBEDDING:
        raise EmbeddingNotAllowed(f"version {version.id} is {version.status}")
    if tx.execute(COMPARE_SNAPSHOT, version_id=version.id).scalar_one():
        raise EmbeddingSetInconsistent(f"the chunks of version {version.id} are not those that were embedded")
    # 3. What a failed run left behind gives way to the whole new set.
    key = {"model_id": job.model_id, "version_id": version.id}
    tx.execute(DELETE_STALE, **key)
    tx.execute(INSERT_EMBEDDINGS, document_id=version.document_id, now=job.now, **key)
    renew_own(tx, job, lease_duration)


def _is_embedded(tx: Transaction, version: LockedVersion, model_id: ModelId, chunks: int) -> bool:
    """Tell whether a whole ACTIVE set is stored; raise if the version can not be embedded or a part is."""
    if version.status not in {VersionStatus.CHUNKED, VersionStatus.EMBEDDING}:
        raise EmbeddingNotAllowed(f"version {version.id} is {version.status}")
    active: int = tx.execute(COUNT_ACTIVE, model_id=model_id, version_id=version.id).scalar_one()
    if active not in {0, chunks} or (active and version.status is VersionStatus.CHUNKED):
        raise EmbeddingSetInconsistent(f"version {version.id} has {active} vectors for {chunks} chunks")
    return active == chunks


def _rows(task: EmbedTask, vectors: Vectors) -> Iterator[tuple[object, ...]]:
    for chunk, vector in zip(task.chunks, vectors, strict=True):
        digest = hashlib.sha256(vector.astype(">f4").tobytes()).hexdigest()
        yield chunk.id, chunk.index, chunk.content_hash, Vector(vector), digest
