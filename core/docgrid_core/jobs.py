"""The states of every entity and the moves between them, as pure data.

The store's transactions follow these tables, the schema's CHECK constraints are built from the state
names, and a test compares both and the picture in docs/design with what stands here.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NewType

JobId = NewType("JobId", int)
WorkerId = NewType("WorkerId", int)
AttemptId = NewType("AttemptId", int)
DocumentId = NewType("DocumentId", int)
VersionId = NewType("VersionId", int)
ModelId = NewType("ModelId", int)


class JobStatus(StrEnum):
    """Where a job stands in the queue."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"
    INDEXED = "INDEXED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class VersionStatus(StrEnum):
    """How far one version of a document has come; the resume point of its job."""

    UPLOADED = "UPLOADED"
    PARSING = "PARSING"
    CHUNKED = "CHUNKED"
    EMBEDDING = "EMBEDDING"
    INDEXED = "INDEXED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"


class AttemptStatus(StrEnum):
    """How one execution of a job ended. RELEASED cost no retry."""

    STARTED = "STARTED"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    RELEASED = "RELEASED"


class WorkerStatus(StrEnum):
    """Whether a worker process may claim. STOPPED and DEAD are final: they fence it."""

    ACTIVE = "ACTIVE"
    IDLE = "IDLE"
    STOPPED = "STOPPED"
    DEAD = "DEAD"


class DocumentStatus(StrEnum):
    """What a caller sees of a document. INDEXED means: a version of it is searchable."""

    UPLOADED = "UPLOADED"
    INDEXING = "INDEXING"
    INDEXED = "INDEXED"
    FAILED = "FAILED"
    DELETED = "DELETED"


class EmbeddingStatus(StrEnum):
    """Whether a vector may be seen by search. STALE rows are deleted, never revived."""

    ACTIVE = "ACTIVE"
    STALE = "STALE"


class DocumentType(StrEnum):
    """The formats that the schema knows; the pipeline says which of them it reads."""

    TXT = "TXT"
    MD = "MD"
    PDF = "PDF"
    DOCX = "DOCX"
    HTML = "HTML"


class StorageProvider(StrEnum):
    """Where the bytes of a document lie."""

    S3 = "S3"
    LOCAL = "LOCAL"


class JobKind(StrEnum):
    """What a job does. REEMBED is reserved for indexing a further model's vectors."""

    INDEX = "INDEX"
    REEMBED = "REEMBED"


class CircuitState(StrEnum):
    """What a worker reports of its provider and storage circuits."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"


class EventType(StrEnum):
    """One line of a job's history; the log replays to the job's state."""

    JOB_CREATED = "JOB_CREATED"
    LOCKED = "LOCKED"
    PARSE_STARTED = "PARSE_STARTED"
    PARSE_FAILED = "PARSE_FAILED"
    CHUNKED = "CHUNKED"
    EMBEDDING_STARTED = "EMBEDDING_STARTED"
    EMBEDDING_FAILED = "EMBEDDING_FAILED"
    INDEXED = "INDEXED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    RELEASED = "RELEASED"
    DEFERRED = "DEFERRED"
    RETRY = "RETRY"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    MANUAL_RETRY = "MANUAL_RETRY"


class FailureType(StrEnum):
    """Why an execution failed. The type alone decides whether it is retried."""

    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE"
    STORAGE_OBJECT_MISSING = "STORAGE_OBJECT_MISSING"
    STORAGE_OBJECT_CHANGED = "STORAGE_OBJECT_CHANGED"
    STORAGE_CONFIGURATION_INVALID = "STORAGE_CONFIGURATION_INVALID"
    DOCUMENT_CONTENT_INVALID = "DOCUMENT_CONTENT_INVALID"
    EMBEDDING_PROVIDER_UNAVAILABLE = "EMBEDDING_PROVIDER_UNAVAILABLE"
    EMBEDDING_REQUEST_INVALID = "EMBEDDING_REQUEST_INVALID"
    EMBEDDING_RESULT_INVALID = "EMBEDDING_RESULT_INVALID"
    INDEXING_STATE_INCONSISTENT = "INDEXING_STATE_INCONSISTENT"
    WORKER_INTERNAL_ERROR = "WORKER_INTERNAL_ERROR"
    WORKER_LEASE_EXPIRED = "WORKER_LEASE_EXPIRED"
    WORKER_OOM_KILLED = "WORKER_OOM_KILLED"
    WORKER_CRASHED = "WORKER_CRASHED"


class StopReason(StrEnum):
    """Why a worker ended; decides what recovery does with its jobs."""

    STOPPED = "Stopped"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    DRAINED = "Drained"
    DELETED = "Deleted"
    NODE_LOST = "NodeLost"
    OOM_KILLED = "OOMKilled"
    ERROR = "Error"
    RESTARTED = "Restarted"
    HEARTBEAT_OVERDUE = "HeartbeatOverdue"


JOB_MOVES: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.PENDING: frozenset({JobStatus.PROCESSING, JobStatus.CANCELED}),
    JobStatus.PROCESSING: frozenset(
        {JobStatus.INDEXED, JobStatus.PENDING, JobStatus.FAILED, JobStatus.CANCELED}
    ),
    JobStatus.INDEXED: frozenset(),
    JobStatus.FAILED: frozenset({JobStatus.PENDING}),
    JobStatus.CANCELED: frozenset(),
}

VERSION_MOVES: Mapping[VersionStatus, frozenset[VersionStatus]] = {
    VersionStatus.UPLOADED: frozenset({VersionStatus.PARSING, VersionStatus.FAILED, VersionStatus.CANCELED}),
    VersionStatus.PARSING: frozenset({VersionStatus.CHUNKED, VersionStatus.FAILED, VersionStatus.CANCELED}),
    VersionStatus.CHUNKED: frozenset({VersionStatus.EMBEDDING, VersionStatus.FAILED, VersionStatus.CANCELED}),
    VersionStatus.EMBEDDING: frozenset({VersionStatus.INDEXED, VersionStatus.FAILED, VersionStatus.CANCELED}),
    VersionStatus.INDEXED: frozenset(),
    VersionStatus.FAILED: frozenset({VersionStatus.UPLOADED, VersionStatus.CHUNKED}),
    VersionStatus.CANCELED: frozenset(),
}

ATTEMPT_MOVES: Mapping[AttemptStatus, frozenset[AttemptStatus]] = {
    AttemptStatus.STARTED: frozenset({AttemptStatus.SUCCESS, AttemptStatus.FAILED, AttemptStatus.RELEASED}),
    AttemptStatus.SUCCESS: frozenset(),
    AttemptStatus.FAILED: frozenset(),
    AttemptStatus.RELEASED: frozenset(),
}

WORKER_MOVES: Mapping[WorkerStatus, frozenset[WorkerStatus]] = {
    WorkerStatus.ACTIVE: frozenset({WorkerStatus.IDLE, WorkerStatus.STOPPED, WorkerStatus.DEAD}),
    WorkerStatus.IDLE: frozenset({WorkerStatus.ACTIVE, WorkerStatus.STOPPED, WorkerStatus.DEAD}),
    WorkerStatus.STOPPED: frozenset(),
    WorkerStatus.DEAD: frozenset(),
}

DOCUMENT_MOVES: Mapping[DocumentStatus, frozenset[DocumentStatus]] = {
    DocumentStatus.UPLOADED: frozenset(
        {DocumentStatus.INDEXING, DocumentStatus.FAILED, DocumentStatus.DELETED}
    ),
    DocumentStatus.INDEXING: frozenset(
        {DocumentStatus.INDEXED, DocumentStatus.FAILED, DocumentStatus.UPLOADED, DocumentStatus.DELETED}
    ),
    DocumentStatus.INDEXED: frozenset({DocumentStatus.DELETED}),
    DocumentStatus.FAILED: frozenset(
        {DocumentStatus.INDEXING, DocumentStatus.UPLOADED, DocumentStatus.DELETED}
    ),
    DocumentStatus.DELETED: frozenset(),
}

EMBEDDING_MOVES: Mapping[EmbeddingStatus, frozenset[EmbeddingStatus]] = {
    EmbeddingStatus.ACTIVE: frozenset({EmbeddingStatus.STALE}),
    EmbeddingStatus.STALE: frozenset(),
}

JOB_LIVE = frozenset({JobStatus.PENDING, JobStatus.PROCESSING})
JOB_TERMINAL = frozenset(JobStatus) - JOB_LIVE
VERSION_IN_FLIGHT = frozenset(
    {VersionStatus.UPLOADED, VersionStatus.PARSING, VersionStatus.CHUNKED, VersionStatus.EMBEDDING}
)
WORKER_LIVE = frozenset({WorkerStatus.ACTIVE, WorkerStatus.IDLE})

PLANNED_ENDS = frozenset(
    {
        StopReason.STOPPED,
        StopReason.EVICTED,
        StopReason.PREEMPTED,
        StopReason.DRAINED,
        StopReason.DELETED,
        StopReason.NODE_LOST,
    }
)
"""Ends that release a worker's jobs without spending a retry; every other reason is a crash."""

STOPPED_REASONS = PLANNED_ENDS - {StopReason.NODE_LOST}
"""Reasons that mark a worker STOPPED; the others mark it DEAD (a lost node is DEAD, yet planned)."""
