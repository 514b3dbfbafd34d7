"""Values that pass between the store and its callers: frozen, without behaviour of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from docgrid_core.jobs import (
    AttemptId,
    AttemptStatus,
    DocumentId,
    DocumentType,
    JobId,
    JobStatus,
    ModelId,
    StorageProvider,
    VersionId,
    WorkerId,
)


@dataclass(frozen=True, slots=True)
class ClaimToken:
    """The fence of one claim. Its value is shown by nothing: not by repr, str, format or a traceback."""

    value: UUID = field(repr=False)

    def __str__(self) -> str:
        return "ClaimToken(…)"


@dataclass(frozen=True, slots=True)
class Claim:
    """One job given to one worker until `lock_expires_at` (the database's clock)."""

    job_id: JobId
    worker_id: WorkerId
    token: ClaimToken
    version_id: VersionId
    model_id: ModelId
    created_at: datetime
    locked_at: datetime
    lock_expires_at: datetime


@dataclass(frozen=True, slots=True)
class ClaimAnswer:
    """What one claim brought: jobs in queue order, or how long the next delayed job is away."""

    claims: tuple[Claim, ...]
    next_delayed: timedelta | None


@dataclass(frozen=True, slots=True)
class Ownership:
    """What every write of an execution is fenced by."""

    job_id: JobId
    worker_id: WorkerId
    token: ClaimToken
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """A model as jobs pin it. `config` says how the provider is asked (prefixes, input type)."""

    id: ModelId
    provider: str
    name: str
    version: str
    dimension: int
    config: Mapping[str, Any]
    is_active: bool
    is_searchable: bool


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """The bytes of one version: where they lie and what they must be."""

    provider: StorageProvider
    bucket: str
    key: str
    sha256: str
    size: int
    content_type: str
    filename: str
    etag: str | None = None
    object_version: str | None = None


@dataclass(frozen=True, slots=True)
class NewChunk:
    """A chunk as the chunker makes it. Offsets are code points, half-open, over the whole document."""

    index: int
    text: str = field(repr=False)
    token_count: int
    char_start: int
    char_end: int
    page_no: int | None
    section_title: str | None = field(repr=False)
    content_hash: str
    metadata: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk as it lies in the database; what the embed stage works from."""

    id: int
    index: int
    text: str = field(repr=False)
    content_hash: str


@dataclass(frozen=True, slots=True)
class ParseTask:
    """What a worker must read and parse. `age` is how long ago the version was registered."""

    source: ObjectRef
    document_type: DocumentType
    age: timedelta


@dataclass(frozen=True, slots=True)
class EmbedTask:
    """What a worker must embed: a whole version's chunks in order, with the job's model."""

    chunks: tuple[StoredChunk, ...]
    model: EmbeddingModel


@dataclass(frozen=True, slots=True)
class Completion:
    """The stored values of a finished job; a replay returns the same ones."""

    job_id: JobId
    attempt_id: AttemptId
    document_id: DocumentId
    version_id: VersionId
    completed_at: datetime


@dataclass(frozen=True, slots=True)
class FailureOutcome:
    """How an execution that did not succeed ended: whether the job runs again, and not before when."""

    job_id: JobId
    attempt_id: AttemptId
    attempt_status: AttemptStatus
    retried: bool
    next_retry_at: datetime | None


class RegistrationOutcome(StrEnum):
    """What registering a document led to."""

    CREATED = "created"
    UNCHANGED = "unchanged"
    IN_PROGRESS = "in_progress"
    RETRIED = "retried"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Registration:
    """The version and job that stand for the registered bytes; `reason` says why they failed before."""

    outcome: RegistrationOutcome
    document_id: DocumentId
    version_id: VersionId
    version_no: int
    job_id: JobId | None
    job_status: JobStatus | None
    reason: str | None = None
