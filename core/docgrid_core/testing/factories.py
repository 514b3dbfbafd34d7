"""Builders for tests and benchmarks: a document, a worker, and an execution that has come as far as is needed.

Everything is made by the protocol's own transactions, so no builder can leave rows that the protocol could not.
"""

import hashlib
import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import text

from docgrid_core.database import Database
from docgrid_core.jobs import DocumentType, FailureType, StorageProvider, VersionId, VersionStatus
from docgrid_core.records import Claim, EmbedTask, NewChunk, ObjectRef, Ownership, Registration
from docgrid_core.store import attempts, claim, complete, documents, embed, parse, workers
from docgrid_core.store.documents import Source
from docgrid_core.store.fail import Report
from docgrid_core.store.workers import RegisteredWorker, WorkerIdentity

LEASE = timedelta(minutes=5)
STORE_TIMEOUT = timedelta(minutes=1)
DEFERRAL = Report(
    FailureType.EMBEDDING_PROVIDER_UNAVAILABLE, "the server asks to wait", "EMBEDDING-PROVIDER-001"
)

READ_VERSION_STATUS = text(
    """
    SELECT v.status FROM embedding_jobs j JOIN document_versions v ON v.id = j.document_version_id
    WHERE j.id = :job_id
    """
)

_names = itertools.count(1)


class Stage(IntEnum):
    """What an execution has done last."""

    STARTED = 1
    PARSE_PREPARED = 2
    CHUNKS_STORED = 3
    EMBED_PREPARED = 4
    VECTORS_STORED = 5
    COMPLETED = 6


@dataclass(frozen=True, slots=True)
class Execution:
    """One claim of one document's job, and the fence of its attempt."""

    document: Registration
    worker: RegisteredWorker
    claim: Claim
    own: Ownership


def identity(
    *, dead_threshold: timedelta = timedelta(seconds=30), pod_uid: str = "", pool_uid: str = ""
) -> WorkerIdentity:
    """Return what a new worker process would say of itself."""
    return WorkerIdentity(
        instance_id=uuid.uuid4(),
        name="worker",
        host_name="host",
        ip_address="127.0.0.1",
        version="0",
        max_concurrency=4,
        dead_threshold=dead_threshold,
        pod_uid=pod_uid,
        indexing_worker_uid=pool_uid,
    )


def register_worker(
    db: Database,
    *,
    dead_threshold: timedelta = timedelta(seconds=30),
    pod_uid: str = "",
    pool_uid: str = "",
) -> RegisteredWorker:
    """Register a new worker for the active model."""
    return workers.register(db, identity(dead_threshold=dead_threshold, pod_uid=pod_uid, pool_uid=pool_uid))


def source(name: str = "", content: str = "content", *, priority: int = 0) -> Source:
    """Return a text document called `name` (a new name if empty) with these bytes."""
    name = name or f"document-{next(_names)}"
    body = content.encode()
    digest = hashlib.sha256(body).hexdigest()
    item = ObjectRef(
        StorageProvider.S3, "bucket", f"objects/{digest}", digest, len(body), "text/plain", f"{name}.txt"
    )
    return Source(f"s3://bucket/{name}.txt", name, DocumentType.TXT, item, priority)


def register(db: Database, name: str = "", content: str = "content", *, priority: int = 0) -> Registration:
    """Register such a document; see `source`."""
    return documents.register(db, source(name, content, priority=priority))


def claim_one(db: Database, worker: RegisteredWorker, *, lease: timedelta = LEASE) -> Claim:
    """Claim the next job, which there must be."""
    (claimed,) = claim.claim(db, worker, limit=1, lease_duration=lease).claims
    return claimed


def chunks(count: int = 3, word: str = "chunk") -> list[NewChunk]:
    """Return the chunks of a document that says `word` with a number in each of them."""
    made = []
    offset = 0
    for index in range(count):
        body = f"{word} {index}"
        digest = hashlib.sha256(body.encode()).hexdigest()
        made.append(NewChunk(index, body, 2, offset, offset + len(body), None, None, digest, {}))
        offset += len(body)
    return made


def vectors(task: EmbedTask, seed: int = 0) -> NDArray[np.float32]:
    """Return valid vectors for the chunks of `task`, the same ones for the same seed."""
    shape = (len(task.chunks), task.model.dimension)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def run(
    db: Database,
    upto: Stage = Stage.STARTED,
    *,
    document: Registration | None = None,
    worker: RegisteredWorker | None = None,
    lease: timedelta = LEASE,
) -> Execution:
    """Take a document's job up to a stage, at least STARTED: of a new document and by a new worker if not given.

    The job must be the next one in the queue.
    """
    document = document or register(db)
    worker = worker or register_worker(db)
    claimed = claim_one(db, worker, lease=lease)
    if claimed.version_id != document.version_id:
        raise AssertionError("another job was first in the queue")
    execution = Execution(document, worker, claimed, attempts.start(db, claimed).ownership)
    advance(db, execution.own, upto)
    return execution


def start_next(db: Database, worker: RegisteredWorker | None = None) -> Ownership:
    """Start the next job of the queue, by a new worker if none is given."""
    return attempts.start(db, claim_one(db, worker or register_worker(db))).ownership


def advance(
    db: Database, own: Ownership, upto: Stage, *, new_chunks: Sequence[NewChunk] = (), seed: int = 0
) -> None:
    """Take a started execution up to a stage; what an earlier execution has done already stays as it is."""
    status = db.run(lambda tx: tx.execute(READ_VERSION_STATUS, job_id=own.job_id).scalar_one())
    if status in {VersionStatus.UPLOADED, VersionStatus.PARSING}:
        if upto >= Stage.PARSE_PREPARED:
            parse.prepare(db, own)
        if upto >= Stage.CHUNKS_STORED:
            parse.store(db, own, list(new_chunks) or chunks(), lease_duration=LEASE)
    if upto >= Stage.EMBED_PREPARED:
        task = embed.prepare(db, own)
        if upto >= Stage.VECTORS_STORED and task is not None:
            store_vectors(db, own, task, seed=seed)
    if upto >= Stage.COMPLETED:
        complete.complete(db, own)


def store_vectors(db: Database, own: Ownership, task: EmbedTask, *, seed: int = 0) -> None:
    """Store valid vectors for the chunks of `task`."""
    embed.store(db, own, task, vectors(task, seed), lease_duration=LEASE, timeout=STORE_TIMEOUT)


def index(db: Database, name: str = "", content: str = "content", *, seed: int = 0) -> VersionId:
    """Register a document and index it; return its version, which is the current one now."""
    document = register(db, name, content)
    execution = run(db, document=document)
    advance(db, execution.own, Stage.COMPLETED, new_chunks=chunks(word=content), seed=seed)
    return document.version_id
