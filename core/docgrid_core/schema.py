"""The tables: the only definition of what the database looks like.

Migrations create the same thing (a test compares them); the store's statements name these columns. The CHECK
constraints on `embedding_jobs` carry the state machine: a job in an impossible state can not be stored.
"""

from enum import StrEnum

from pgvector.sqlalchemy import VECTOR
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Interval,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, UUID

from docgrid_core.jobs import (
    VERSION_IN_FLIGHT,
    AttemptStatus,
    CircuitState,
    DocumentStatus,
    DocumentType,
    EmbeddingStatus,
    EventType,
    FailureType,
    JobKind,
    JobStatus,
    StopReason,
    StorageProvider,
    VersionStatus,
    WorkerStatus,
)

metadata = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    }
)

MAX_DIMENSION = 4000
MAX_ERROR_MESSAGE = 2000
MAX_TITLE = 500
MAX_SOURCE_URI_BYTES = 2048

_NOW = text("now()")


def _names(values: frozenset[StrEnum] | type[StrEnum]) -> str:
    return ", ".join(f"'{value}'" for value in sorted(values))


def _one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    return CheckConstraint(f"{column} IN ({_names(values)})", name=column)


def _id() -> Column[int]:
    return Column("id", BigInteger, Identity(always=True), primary_key=True)


def _time(name: str, *, nullable: bool = True) -> Column[object]:
    return Column(name, DateTime(timezone=True), nullable=nullable, server_default=None if nullable else _NOW)


def _stamps() -> tuple[Column[object], Column[object]]:
    return _time("created_at", nullable=False), _time("updated_at", nullable=False)


def _ref(name: str, target: str, *, nullable: bool = False) -> Column[int]:
    return Column(name, BigInteger, ForeignKey(target), nullable=nullable)


file_objects = Table(
    "file_objects",
    metadata,
    _id(),
    Column("storage_provider", Text, nullable=False),
    Column("bucket_name", Text, nullable=False),
    Column("object_key", Text, nullable=False),
    Column("etag", Text),
    Column("object_version", Text),
    Column("original_filename", Text, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("file_size", BigInteger, nullable=False),
    Column("file_hash", Text, nullable=False),
    *_stamps(),
    UniqueConstraint(
        "storage_provider", "bucket_name", "object_key", "file_hash", name="file_objects_identity_key"
    ),
    _one_of("storage_provider", StorageProvider),
    CheckConstraint("file_size >= 0", name="file_size"),
    CheckConstraint("file_hash ~ '^[0-9a-f]{64}$'", name="file_hash"),
    Index(None, "file_hash"),
)

documents = Table(
    "documents",
    metadata,
    _id(),
    Column("source_uri", Text, nullable=False),
    Column("title", Text, nullable=False),
    Column("document_type", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column(
        "current_version_id",
        BigInteger,
        # Documents and versions refer to each other: added after both tables, checked at the commit.
        ForeignKey(
            "document_versions.id",
            name="documents_current_version_id_fkey",
            use_alter=True,
            deferrable=True,
            initially="DEFERRED",
        ),
    ),
    _time("deleted_at"),
    *_stamps(),
    _one_of("document_type", DocumentType),
    _one_of("status", DocumentStatus),
    CheckConstraint(f"char_length(title) <= {MAX_TITLE}", name="title"),
    CheckConstraint(f"octet_length(source_uri) <= {MAX_SOURCE_URI_BYTES}", name="source_uri"),
    CheckConstraint("(status = 'DELETED') = (deleted_at IS NOT NULL)", name="deleted"),
    Index(
        "documents_source_uri_live_key",
        "source_uri",
        unique=True,
        postgresql_where=text("deleted_at IS NULL"),
    ),
)

document_versions = Table(
    "document_versions",
    metadata,
    _id(),
    _ref("document_id", "documents.id"),
    Column("version_no", Integer, nullable=False),
    _ref("file_object_id", "file_objects.id"),
    Column("original_filename", Text, nullable=False),
    Column("content_type", Text, nullable=False),
    Column("file_hash", Text, nullable=False),
    Column("status", Text, nullable=False),
    _time("indexed_at"),
    *_stamps(),
    UniqueConstraint("document_id", "version_no"),
    _one_of("status", VersionStatus),
    CheckConstraint("version_no >= 1", name="version_no"),
    CheckConstraint("(status = 'INDEXED') = (indexed_at IS NOT NULL)", name="indexed"),
    Index(
        "document_versions_in_flight_key",
        "document_id",
        unique=True,
        postgresql_where=text(f"status IN ({_names(VERSION_IN_FLIGHT)})"),
    ),
    Index(None, "file_object_id"),
)

document_chunks = Table(
    "document_chunks",
    metadata,
    _id(),
    _ref("document_version_id", "document_versions.id"),
    Column("chunk_index", Integer, nullable=False),
    Column("chunk_text", Text, nullable=False),
    Column("token_count", Integer, nullable=False),
    Column("char_start", Integer, nullable=False),
    Column("char_end", Integer, nullable=False),
    Column("page_no", Integer),
    Column("section_title", Text),
    Column("content_hash", Text, nullable=False),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    *_stamps(),
    UniqueConstraint("document_version_id", "chunk_index"),
    CheckConstraint("chunk_index >= 0", name="chunk_index"),
    CheckConstraint("char_start >= 0 AND char_end > char_start", name="offsets"),
    Index(None, "content_hash"),
)

embedding_models = Table(
    "embedding_models",
    metadata,
    _id(),
    Column("provider", Text, nullable=False),
    Column("model_name", Text, nullable=False),
    Column("model_version", Text, nullable=False),
    Column("dimension", Integer, nullable=False),
    Column("distance_metric", Text, nullable=False, server_default="cosine"),
    Column("is_active", Boolean, nullable=False, server_default=text("false")),
    Column("is_searchable", Boolean, nullable=False, server_default=text("false")),
    Column("config", JSONB, nullable=False, server_default=text("'{}'")),
    *_stamps(),
    UniqueConstraint("provider", "model_name", "model_version"),
    CheckConstraint(f"dimension > 0 AND dimension <= {MAX_DIMENSION}", name="dimension"),
    CheckConstraint("distance_metric = 'cosine'", name="distance_metric"),
    # One row at most satisfies the predicate, because the indexed expression is the same for all of them.
    Index(
        "embedding_models_active_searchable_key",
        text("(true)"),
        unique=True,
        postgresql_where=text("is_active AND is_searchable"),
    ),
)

embeddings = Table(
    "embeddings",
    metadata,
    Column("chunk_id", BigInteger, ForeignKey("document_chunks.id"), nullable=False),
    Column("embedding_model_id", BigInteger, nullable=False),
    Column("document_id", BigInteger, nullable=False),
    Column("document_version_id", BigInteger, nullable=False),
    Column("vector", VECTOR(), nullable=False),
    Column("vector_hash", Text, nullable=False),
    Column("status", Text, nullable=False),
    _time("created_at", nullable=False),
    PrimaryKeyConstraint("chunk_id", "embedding_model_id"),
    _one_of("status", EmbeddingStatus),
    Index(None, "document_version_id", "status"),
    postgresql_partition_by="LIST (embedding_model_id)",
)

worker_nodes = Table(
    "worker_nodes",
    metadata,
    _id(),
    Column("worker_name", Text, nullable=False),
    Column("instance_id", UUID(as_uuid=True), nullable=False, unique=True),
    Column("host_name", Text, nullable=False),
    Column("ip_address", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("pod_name", Text, nullable=False),
    Column("pod_uid", Text, nullable=False),
    Column("node_name", Text, nullable=False),
    Column("indexing_worker", Text, nullable=False),
    Column("indexing_worker_uid", Text, nullable=False),
    _ref("embedding_model_id", "embedding_models.id", nullable=True),
    Column("max_concurrency", Integer, nullable=False),
    Column("running_jobs", Integer, nullable=False, server_default=text("0")),
    Column("circuit", Text, nullable=False, server_default=CircuitState.CLOSED.value),
    Column("dead_threshold", Interval, nullable=False),
    Column("version", Text, nullable=False),
    Column("status", Text, nullable=False),
    _time("last_heartbeat_at"),
    _time("started_at", nullable=False),
    _time("stopped_at"),
    Column("stop_reason", Text),
    *_stamps(),
    _one_of("status", WorkerStatus),
    _one_of("circuit", CircuitState),
    CheckConstraint(f"stop_reason IN ({_names(StopReason)})", name="stop_reason"),
    CheckConstraint("max_concurrency >= 1", name="max_concurrency"),
    CheckConstraint("running_jobs >= 0", name="running_jobs"),
    CheckConstraint("dead_threshold > interval '0'", name="dead_threshold"),
    CheckConstraint(
        "(status IN ('STOPPED', 'DEAD')) = (stopped_at IS NOT NULL)"
        " AND (stopped_at IS NULL) = (stop_reason IS NULL)",
        name="ended",
    ),
    # No index mentions status, heartbeat or running_jobs: with half of each page free, heartbeats are HOT.
    Index(None, "pod_uid"),
    postgresql_with={"fillfactor": "50"},
)

embedding_jobs = Table(
    "embedding_jobs",
    metadata,
    _id(),
    _ref("document_version_id", "document_versions.id"),
    _ref("embedding_model_id", "embedding_models.id"),
    Column("kind", Text, nullable=False, server_default=JobKind.INDEX.value),
    Column("status", Text, nullable=False),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    Column("retry_count", Integer, nullable=False, server_default=text("0")),
    Column("max_retry_count", Integer, nullable=False, server_default=text("3")),
    Column("suspect", Boolean, nullable=False, server_default=text("false")),
    _time("deferred_since"),
    _ref("locked_by_worker_id", "worker_nodes.id", nullable=True),
    _time("locked_at"),
    _time("lock_expires_at"),
    Column("claim_token", UUID(as_uuid=True)),
    _time("next_retry_at"),
    _time("started_at"),
    _time("completed_at"),
    _time("failed_at"),
    Column("error_code", Text),
    Column("error_message", Text),
    *_stamps(),
    _one_of("kind", JobKind),
    _one_of("status", JobStatus),
    CheckConstraint("retry_count >= 0 AND retry_count <= max_retry_count", name="retry_count"),
    CheckConstraint(f"char_length(error_message) <= {MAX_ERROR_MESSAGE}", name="error_message"),
    CheckConstraint(
        "status <> 'PENDING' OR num_nonnulls(locked_by_worker_id, claim_token, locked_at, lock_expires_at,"
        " completed_at, failed_at) = 0",
        name="pending",
    ),
    CheckConstraint(
        "status <> 'PROCESSING' OR (lock_expires_at > locked_at AND next_retry_at IS NULL"
        " AND num_nulls(locked_by_worker_id, claim_token, locked_at, lock_expires_at) = 0)",
        name="processing",
    ),
    CheckConstraint(
        "status <> 'INDEXED' OR num_nulls(completed_at, locked_by_worker_id, claim_token) = 0", name="indexed"
    ),
    CheckConstraint("status <> 'FAILED' OR num_nulls(failed_at, error_code) = 0", name="failed"),
    CheckConstraint(
        "status <> 'CANCELED'"
        " OR num_nonnulls(locked_by_worker_id, claim_token, locked_at, lock_expires_at) = 0",
        name="canceled",
    ),
    Index(
        "embedding_jobs_live_key",
        "document_version_id",
        "embedding_model_id",
        unique=True,
        postgresql_where=text("status IN ('PENDING', 'PROCESSING')"),
    ),
    # The claim's order. `suspect` comes second, so that either kind is one range of the index.
    Index(
        "embedding_jobs_ready_idx",
        "embedding_model_id",
        "suspect",
        text("priority DESC"),
        "created_at",
        "id",
        postgresql_where=text("status = 'PENDING' AND next_retry_at IS NULL"),
    ),
    Index(
        "embedding_jobs_delayed_idx",
        "embedding_model_id",
        "next_retry_at",
        postgresql_where=text("status = 'PENDING' AND next_retry_at IS NOT NULL"),
    ),
    Index("embedding_jobs_lease_idx", "lock_expires_at", postgresql_where=text("status = 'PROCESSING'")),
    # Both what a worker holds now and (for pruning workers) what it ever finished.
    Index("embedding_jobs_owner_idx", "locked_by_worker_id", "status"),
    Index("embedding_jobs_failed_idx", "failed_at", postgresql_where=text("status = 'FAILED'")),
    Index("embedding_jobs_indexed_idx", "completed_at", postgresql_where=text("status = 'INDEXED'")),
    Index("embedding_jobs_canceled_idx", "updated_at", postgresql_where=text("status = 'CANCELED'")),
    Index(None, "document_version_id"),
)

embedding_job_attempts = Table(
    "embedding_job_attempts",
    metadata,
    _id(),
    _ref("embedding_job_id", "embedding_jobs.id"),
    _ref("worker_node_id", "worker_nodes.id"),
    Column("attempt_no", Integer, nullable=False),
    Column("claim_token", UUID(as_uuid=True), nullable=False),
    Column("status", Text, nullable=False),
    _time("started_at", nullable=False),
    _time("ended_at"),
    Column("duration_ms", BigInteger),
    Column("failure_type", Text),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("retried", Boolean),
    _time("next_retry_at"),
    *_stamps(),
    UniqueConstraint("embedding_job_id", "attempt_no"),
    UniqueConstraint("embedding_job_id", "claim_token"),
    _one_of("status", AttemptStatus),
    CheckConstraint(f"failure_type IN ({_names(FailureType)})", name="failure_type"),
    CheckConstraint("attempt_no >= 1", name="attempt_no"),
    CheckConstraint("(status = 'STARTED') = (ended_at IS NULL)", name="ended"),
    CheckConstraint("(status = 'FAILED') = (failure_type IS NOT NULL)", name="failed"),
    CheckConstraint(f"char_length(error_message) <= {MAX_ERROR_MESSAGE}", name="error_message"),
    Index(None, "worker_node_id"),
)

indexing_events = Table(
    "indexing_events",
    metadata,
    _id(),
    _ref("embedding_job_id", "embedding_jobs.id"),
    Column("event_type", Text, nullable=False),
    Column("from_status", Text),
    Column("to_status", Text, nullable=False),
    Column("message", Text),
    Column("metadata", JSONB, nullable=False, server_default=text("'{}'")),
    _time("occurred_at", nullable=False),
    _one_of("event_type", EventType),
    Index(None, "embedding_job_id", "id"),
)
