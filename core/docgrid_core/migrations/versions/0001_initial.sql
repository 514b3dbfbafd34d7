-- The first schema. Frozen: a change of the schema is a new revision.

CREATE TABLE file_objects (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    storage_provider TEXT NOT NULL,
    bucket_name TEXT NOT NULL,
    object_key TEXT NOT NULL,
    etag TEXT,
    object_version TEXT,
    original_filename TEXT NOT NULL,
    content_type TEXT NOT NULL,
    file_size BIGINT NOT NULL,
    file_hash TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT file_objects_pkey PRIMARY KEY (id),
    CONSTRAINT file_objects_identity_key UNIQUE (storage_provider, bucket_name, object_key, file_hash),
    CONSTRAINT file_objects_storage_provider_check CHECK (storage_provider IN ('LOCAL', 'S3')),
    CONSTRAINT file_objects_file_size_check CHECK (file_size >= 0),
    CONSTRAINT file_objects_file_hash_check CHECK (file_hash ~ '^[0-9a-f]{64}$')
);

CREATE INDEX file_objects_file_hash_idx ON file_objects (file_hash);

CREATE TABLE documents (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    source_uri TEXT NOT NULL,
    title TEXT NOT NULL,
    document_type TEXT NOT NULL,
    status TEXT NOT NULL,
    current_version_id BIGINT,
    deleted_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT documents_pkey PRIMARY KEY (id),
    CONSTRAINT documents_document_type_check CHECK (document_type IN ('DOCX', 'HTML', 'MD', 'PDF', 'TXT')),
    CONSTRAINT documents_status_check CHECK (status IN ('DELETED', 'FAILED', 'INDEXED', 'INDEXING', 'UPLOADED')),
    CONSTRAINT documents_title_check CHECK (char_length(title) <= 500),
    CONSTRAINT documents_source_uri_check CHECK (octet_length(source_uri) <= 2048),
    CONSTRAINT documents_deleted_check CHECK ((status = 'DELETED') = (deleted_at IS NOT NULL))
);

CREATE UNIQUE INDEX documents_source_uri_live_key ON documents (source_uri) WHERE deleted_at IS NULL;

CREATE TABLE embedding_models (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    provider TEXT NOT NULL,
    model_name TEXT NOT NULL,
    model_version TEXT NOT NULL,
    dimension INTEGER NOT NULL,
    distance_metric TEXT DEFAULT 'cosine' NOT NULL,
    is_active BOOLEAN DEFAULT false NOT NULL,
    is_searchable BOOLEAN DEFAULT false NOT NULL,
    config JSONB DEFAULT '{}' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT embedding_models_pkey PRIMARY KEY (id),
    CONSTRAINT embedding_models_provider_model_name_model_version_key UNIQUE (provider, model_name, model_version),
    CONSTRAINT embedding_models_dimension_check CHECK (dimension > 0 AND dimension <= 4000),
    CONSTRAINT embedding_models_distance_metric_check CHECK (distance_metric = 'cosine')
);

CREATE UNIQUE INDEX embedding_models_active_searchable_key ON embedding_models ((true)) WHERE is_active AND is_searchable;

CREATE TABLE document_versions (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    document_id BIGINT NOT NULL,
    version_no INTEGER NOT NULL,
    file_object_id BIGINT NOT NULL,
    original_filename TEXT NOT NULL,
    content_type TEXT NOT NULL,
    file_hash TEXT NOT NULL,
    status TEXT NOT NULL,
    indexed_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT document_versions_pkey PRIMARY KEY (id),
    CONSTRAINT document_versions_document_id_version_no_key UNIQUE (document_id, version_no),
    CONSTRAINT document_versions_status_check CHECK (status IN ('CANCELED', 'CHUNKED', 'EMBEDDING', 'FAILED', 'INDEXED', 'PARSING', 'UPLOADED')),
    CONSTRAINT document_versions_version_no_check CHECK (version_no >= 1),
    CONSTRAINT document_versions_indexed_check CHECK ((status = 'INDEXED') = (indexed_at IS NOT NULL)),
    CONSTRAINT document_versions_document_id_fkey FOREIGN KEY(document_id) REFERENCES documents (id),
    CONSTRAINT document_versions_file_object_id_fkey FOREIGN KEY(file_object_id) REFERENCES file_objects (id)
);

CREATE UNIQUE INDEX document_versions_in_flight_key ON document_versions (document_id) WHERE status IN ('CHUNKED', 'EMBEDDING', 'PARSING', 'UPLOADED');

CREATE INDEX document_versions_file_object_id_idx ON document_versions (file_object_id);

CREATE TABLE worker_nodes (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    worker_name TEXT NOT NULL,
    instance_id UUID NOT NULL,
    host_name TEXT NOT NULL,
    ip_address TEXT NOT NULL,
    namespace TEXT NOT NULL,
    pod_name TEXT NOT NULL,
    pod_uid TEXT NOT NULL,
    node_name TEXT NOT NULL,
    indexing_worker TEXT NOT NULL,
    indexing_worker_uid TEXT NOT NULL,
    embedding_model_id BIGINT,
    max_concurrency INTEGER NOT NULL,
    running_jobs INTEGER DEFAULT 0 NOT NULL,
    circuit TEXT DEFAULT 'CLOSED' NOT NULL,
    dead_threshold INTERVAL NOT NULL,
    version TEXT NOT NULL,
    status TEXT NOT NULL,
    last_heartbeat_at TIMESTAMP WITH TIME ZONE,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    stopped_at TIMESTAMP WITH TIME ZONE,
    stop_reason TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT worker_nodes_pkey PRIMARY KEY (id),
    CONSTRAINT worker_nodes_status_check CHECK (status IN ('ACTIVE', 'DEAD', 'IDLE', 'STOPPED')),
    CONSTRAINT worker_nodes_circuit_check CHECK (circuit IN ('CLOSED', 'OPEN')),
    CONSTRAINT worker_nodes_stop_reason_check CHECK (stop_reason IN ('Deleted', 'Drained', 'Error', 'Evicted', 'HeartbeatOverdue', 'NodeLost', 'OOMKilled', 'Preempted', 'Restarted', 'Stopped')),
    CONSTRAINT worker_nodes_max_concurrency_check CHECK (max_concurrency >= 1),
    CONSTRAINT worker_nodes_running_jobs_check CHECK (running_jobs >= 0),
    CONSTRAINT worker_nodes_dead_threshold_check CHECK (dead_threshold > interval '0'),
    CONSTRAINT worker_nodes_ended_check CHECK ((status IN ('STOPPED', 'DEAD')) = (stopped_at IS NOT NULL) AND (stopped_at IS NULL) = (stop_reason IS NULL)),
    CONSTRAINT worker_nodes_instance_id_key UNIQUE (instance_id),
    CONSTRAINT worker_nodes_embedding_model_id_fkey FOREIGN KEY(embedding_model_id) REFERENCES embedding_models (id)
)
     WITH (fillfactor = 50);

CREATE INDEX worker_nodes_pod_uid_idx ON worker_nodes (pod_uid);

CREATE TABLE document_chunks (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    document_version_id BIGINT NOT NULL,
    chunk_index INTEGER NOT NULL,
    chunk_text TEXT NOT NULL,
    token_count INTEGER NOT NULL,
    char_start INTEGER NOT NULL,
    char_end INTEGER NOT NULL,
    page_no INTEGER,
    section_title TEXT,
    content_hash TEXT NOT NULL,
    metadata JSONB DEFAULT '{}' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT document_chunks_pkey PRIMARY KEY (id),
    CONSTRAINT document_chunks_document_version_id_chunk_index_key UNIQUE (document_version_id, chunk_index),
    CONSTRAINT document_chunks_chunk_index_check CHECK (chunk_index >= 0),
    CONSTRAINT document_chunks_offsets_check CHECK (char_start >= 0 AND char_end > char_start),
    CONSTRAINT document_chunks_document_version_id_fkey FOREIGN KEY(document_version_id) REFERENCES document_versions (id)
);

CREATE INDEX document_chunks_content_hash_idx ON document_chunks (content_hash);

CREATE TABLE embedding_jobs (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    document_version_id BIGINT NOT NULL,
    embedding_model_id BIGINT NOT NULL,
    kind TEXT DEFAULT 'INDEX' NOT NULL,
    status TEXT NOT NULL,
    priority INTEGER DEFAULT 0 NOT NULL,
    retry_count INTEGER DEFAULT 0 NOT NULL,
    max_retry_count INTEGER DEFAULT 3 NOT NULL,
    suspect BOOLEAN DEFAULT false NOT NULL,
    deferred_since TIMESTAMP WITH TIME ZONE,
    locked_by_worker_id BIGINT,
    locked_at TIMESTAMP WITH TIME ZONE,
    lock_expires_at TIMESTAMP WITH TIME ZONE,
    claim_token UUID,
    next_retry_at TIMESTAMP WITH TIME ZONE,
    started_at TIMESTAMP WITH TIME ZONE,
    completed_at TIMESTAMP WITH TIME ZONE,
    failed_at TIMESTAMP WITH TIME ZONE,
    error_code TEXT,
    error_message TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT embedding_jobs_pkey PRIMARY KEY (id),
    CONSTRAINT embedding_jobs_kind_check CHECK (kind IN ('INDEX', 'REEMBED')),
    CONSTRAINT embedding_jobs_status_check CHECK (status IN ('CANCELED', 'FAILED', 'INDEXED', 'PENDING', 'PROCESSING')),
    CONSTRAINT embedding_jobs_retry_count_check CHECK (retry_count >= 0 AND retry_count <= max_retry_count),
    CONSTRAINT embedding_jobs_error_message_check CHECK (char_length(error_message) <= 2000),
    CONSTRAINT embedding_jobs_pending_check CHECK (status <> 'PENDING' OR num_nonnulls(locked_by_worker_id, claim_token, locked_at, lock_expires_at, completed_at, failed_at) = 0),
    CONSTRAINT embedding_jobs_processing_check CHECK (status <> 'PROCESSING' OR (lock_expires_at > locked_at AND next_retry_at IS NULL AND num_nulls(locked_by_worker_id, claim_token, locked_at, lock_expires_at) = 0)),
    CONSTRAINT embedding_jobs_indexed_check CHECK (status <> 'INDEXED' OR num_nulls(completed_at, locked_by_worker_id, claim_token) = 0),
    CONSTRAINT embedding_jobs_failed_check CHECK (status <> 'FAILED' OR num_nulls(failed_at, error_code) = 0),
    CONSTRAINT embedding_jobs_canceled_check CHECK (status <> 'CANCELED' OR num_nonnulls(locked_by_worker_id, claim_token, locked_at, lock_expires_at) = 0),
    CONSTRAINT embedding_jobs_document_version_id_fkey FOREIGN KEY(document_version_id) REFERENCES document_versions (id),
    CONSTRAINT embedding_jobs_embedding_model_id_fkey FOREIGN KEY(embedding_model_id) REFERENCES embedding_models (id),
    CONSTRAINT embedding_jobs_locked_by_worker_id_fkey FOREIGN KEY(locked_by_worker_id) REFERENCES worker_nodes (id)
);

CREATE INDEX embedding_jobs_document_version_id_idx ON embedding_jobs (document_version_id);

CREATE INDEX embedding_jobs_failed_idx ON embedding_jobs (failed_at) WHERE status = 'FAILED';

CREATE INDEX embedding_jobs_indexed_idx ON embedding_jobs (completed_at) WHERE status = 'INDEXED';

CREATE INDEX embedding_jobs_canceled_idx ON embedding_jobs (updated_at) WHERE status = 'CANCELED';

CREATE UNIQUE INDEX embedding_jobs_live_key ON embedding_jobs (document_version_id, embedding_model_id) WHERE status IN ('PENDING', 'PROCESSING');

CREATE INDEX embedding_jobs_owner_idx ON embedding_jobs (locked_by_worker_id, status);

CREATE INDEX embedding_jobs_ready_idx ON embedding_jobs (embedding_model_id, suspect, priority DESC, created_at, id) WHERE status = 'PENDING' AND next_retry_at IS NULL;

CREATE INDEX embedding_jobs_delayed_idx ON embedding_jobs (embedding_model_id, next_retry_at) WHERE status = 'PENDING' AND next_retry_at IS NOT NULL;

CREATE INDEX embedding_jobs_lease_idx ON embedding_jobs (lock_expires_at) WHERE status = 'PROCESSING';

CREATE TABLE embeddings (
    chunk_id BIGINT NOT NULL,
    embedding_model_id BIGINT NOT NULL,
    document_id BIGINT NOT NULL,
    document_version_id BIGINT NOT NULL,
    vector VECTOR NOT NULL,
    vector_hash TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT embeddings_pkey PRIMARY KEY (chunk_id, embedding_model_id),
    CONSTRAINT embeddings_status_check CHECK (status IN ('ACTIVE', 'STALE')),
    CONSTRAINT embeddings_chunk_id_fkey FOREIGN KEY(chunk_id) REFERENCES document_chunks (id)
)
     PARTITION BY LIST (embedding_model_id);

CREATE INDEX embeddings_document_version_id_status_idx ON embeddings (document_version_id, status);

CREATE TABLE embedding_job_attempts (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    embedding_job_id BIGINT NOT NULL,
    worker_node_id BIGINT NOT NULL,
    attempt_no INTEGER NOT NULL,
    claim_token UUID NOT NULL,
    status TEXT NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    duration_ms BIGINT,
    failure_type TEXT,
    error_code TEXT,
    error_message TEXT,
    retried BOOLEAN,
    next_retry_at TIMESTAMP WITH TIME ZONE,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT embedding_job_attempts_pkey PRIMARY KEY (id),
    CONSTRAINT embedding_job_attempts_embedding_job_id_attempt_no_key UNIQUE (embedding_job_id, attempt_no),
    CONSTRAINT embedding_job_attempts_embedding_job_id_claim_token_key UNIQUE (embedding_job_id, claim_token),
    CONSTRAINT embedding_job_attempts_status_check CHECK (status IN ('FAILED', 'RELEASED', 'STARTED', 'SUCCESS')),
    CONSTRAINT embedding_job_attempts_failure_type_check CHECK (failure_type IN ('DOCUMENT_CONTENT_INVALID', 'EMBEDDING_PROVIDER_UNAVAILABLE', 'EMBEDDING_REQUEST_INVALID', 'EMBEDDING_RESULT_INVALID', 'INDEXING_STATE_INCONSISTENT', 'STORAGE_CONFIGURATION_INVALID', 'STORAGE_OBJECT_CHANGED', 'STORAGE_OBJECT_MISSING', 'STORAGE_UNAVAILABLE', 'WORKER_CRASHED', 'WORKER_INTERNAL_ERROR', 'WORKER_LEASE_EXPIRED', 'WORKER_OOM_KILLED')),
    CONSTRAINT embedding_job_attempts_attempt_no_check CHECK (attempt_no >= 1),
    CONSTRAINT embedding_job_attempts_ended_check CHECK ((status = 'STARTED') = (ended_at IS NULL)),
    CONSTRAINT embedding_job_attempts_failed_check CHECK ((status = 'FAILED') = (failure_type IS NOT NULL)),
    CONSTRAINT embedding_job_attempts_error_message_check CHECK (char_length(error_message) <= 2000),
    CONSTRAINT embedding_job_attempts_embedding_job_id_fkey FOREIGN KEY(embedding_job_id) REFERENCES embedding_jobs (id),
    CONSTRAINT embedding_job_attempts_worker_node_id_fkey FOREIGN KEY(worker_node_id) REFERENCES worker_nodes (id)
);

CREATE INDEX embedding_job_attempts_worker_node_id_idx ON embedding_job_attempts (worker_node_id);

CREATE TABLE indexing_events (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    embedding_job_id BIGINT NOT NULL,
    event_type TEXT NOT NULL,
    from_status TEXT,
    to_status TEXT NOT NULL,
    message TEXT,
    metadata JSONB DEFAULT '{}' NOT NULL,
    occurred_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT indexing_events_pkey PRIMARY KEY (id),
    CONSTRAINT indexing_events_event_type_check CHECK (event_type IN ('CANCELED', 'CHUNKED', 'DEFERRED', 'EMBEDDING_FAILED', 'EMBEDDING_STARTED', 'FAILED', 'INDEXED', 'JOB_CREATED', 'LEASE_EXPIRED', 'LOCKED', 'MANUAL_RETRY', 'PARSE_FAILED', 'PARSE_STARTED', 'RELEASED', 'RETRY')),
    CONSTRAINT indexing_events_embedding_job_id_fkey FOREIGN KEY(embedding_job_id) REFERENCES embedding_jobs (id)
);

CREATE INDEX indexing_events_embedding_job_id_id_idx ON indexing_events (embedding_job_id, id);

ALTER TABLE documents ADD CONSTRAINT documents_current_version_id_fkey FOREIGN KEY(current_version_id) REFERENCES document_versions (id) DEFERRABLE INITIALLY DEFERRED;
