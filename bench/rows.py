"""Rows by the hundred thousand, written set-based: a queue as it would be after months.

They are what the protocol's transactions would have left. Foreign keys are not checked while they are written
(the benchmarks' user is a superuser), which is most of the time that it would take. Ids are given: document,
version and job `n` belong together.
"""

from collections.abc import Mapping
from typing import Any

import psycopg

Connection = psycopg.Connection[Any]

_FILE = """
    INSERT INTO file_objects (storage_provider, bucket_name, object_key, original_filename, content_type,
                              file_size, file_hash)
    VALUES ('S3', 'bucket', 'objects/bench', 'bench.txt', 'text/plain', 1, repeat('0', 64))
    ON CONFLICT DO NOTHING
"""
_DOCUMENTS = """
    INSERT INTO documents (id, source_uri, title, document_type, status, current_version_id)
    OVERRIDING SYSTEM VALUE
    SELECT n, 's3://bucket/' || n, 'document ' || n, 'TXT', %(document_status)s,
           CASE WHEN %(document_status)s = 'INDEXED' THEN n END
    FROM generate_series(%(first)s::bigint, %(last)s) AS n
"""
_VERSIONS = """
    INSERT INTO document_versions (id, document_id, version_no, file_object_id, original_filename, content_type,
                                   file_hash, status, indexed_at)
    OVERRIDING SYSTEM VALUE
    SELECT n, n, 1, f.id, 'bench.txt', 'text/plain', f.file_hash, %(version_status)s,
           CASE WHEN %(version_status)s = 'INDEXED' THEN now() END
    FROM generate_series(%(first)s::bigint, %(last)s) AS n, file_objects f
"""
_CHUNKS = """
    INSERT INTO document_chunks (id, document_version_id, chunk_index, chunk_text, token_count, char_start,
                                 char_end, content_hash)
    OVERRIDING SYSTEM VALUE
    SELECT n, n, 0, 'chunk', 1, 0, 5, md5(n::text)
    FROM generate_series(%(first)s::bigint, %(last)s) AS n
"""
_VECTORS = """
    INSERT INTO embeddings (chunk_id, embedding_model_id, document_id, document_version_id, vector, vector_hash,
                            status)
    SELECT n, m.id, n, n, (SELECT array_agg(random()) FROM generate_series(1, m.dimension + n * 0))::vector,
           md5(n::text), 'ACTIVE'
    FROM generate_series(%(first)s::bigint, %(last)s) AS n, embedding_models m
"""
_READY_JOBS = """
    INSERT INTO embedding_jobs (id, document_version_id, embedding_model_id, status, priority, created_at,
                                next_retry_at)
    OVERRIDING SYSTEM VALUE
    SELECT n, n, m.id, 'PENDING', n %% 10, now() - (%(last)s - n) * interval '1 millisecond',
           now() + n * %(delay)s::interval
    FROM generate_series(%(first)s::bigint, %(last)s) AS n, embedding_models m
"""
_FINISHED_JOBS = """
    INSERT INTO embedding_jobs (id, document_version_id, embedding_model_id, status, priority, created_at,
                                started_at, completed_at, locked_by_worker_id, claim_token, locked_at,
                                lock_expires_at)
    OVERRIDING SYSTEM VALUE
    SELECT n, n, m.id, 'INDEXED', n %% 10, at, at, at, %(worker_id)s, gen_random_uuid(), at,
           at + interval '5 minutes'
    FROM (SELECT n, now() - (%(last)s - n) * interval '1 millisecond' AS at
          FROM generate_series(%(first)s::bigint, %(last)s) AS n) AS times, embedding_models m
"""
_EXPIRED_JOBS = """
    INSERT INTO embedding_jobs (id, document_version_id, embedding_model_id, status, retry_count, started_at,
                                locked_by_worker_id, claim_token, locked_at, lock_expires_at)
    OVERRIDING SYSTEM VALUE
    SELECT n, n, m.id, 'PROCESSING', CASE WHEN n %% 10 = 0 THEN 3 ELSE 0 END, now() - interval '1 hour',
           %(worker_id)s, gen_random_uuid(), now() - interval '1 hour',
           now() - interval '10 minutes' + n * interval '1 millisecond'
    FROM generate_series(%(first)s::bigint, %(last)s) AS n, embedding_models m
"""
# Three executions that failed before, for those jobs that have spent their retries.
_FAILED_ATTEMPTS = """
    INSERT INTO embedding_job_attempts (embedding_job_id, worker_node_id, attempt_no, claim_token, status,
                                        started_at, ended_at, duration_ms, failure_type, error_code, retried)
    SELECT j.id, j.locked_by_worker_id, no, gen_random_uuid(), 'FAILED', now() - interval '2 hours',
           now() - interval '2 hours', 0, 'WORKER_LEASE_EXPIRED', 'WORKER_LEASE_EXPIRED', true
    FROM embedding_jobs j, generate_series(1, j.retry_count) AS no
    WHERE j.status = 'PROCESSING'
"""
_STARTED_ATTEMPTS = """
    INSERT INTO embedding_job_attempts (embedding_job_id, worker_node_id, attempt_no, claim_token, status,
                                        started_at)
    SELECT id, locked_by_worker_id, retry_count + 1, claim_token, 'STARTED', locked_at
    FROM embedding_jobs WHERE status = 'PROCESSING'
"""
_CREATED_EVENTS = """
    INSERT INTO indexing_events (embedding_job_id, event_type, to_status)
    SELECT n, 'JOB_CREATED', 'PENDING' FROM generate_series(%(first)s::bigint, %(last)s) AS n
"""


def add_embedded(connection: Connection, *, first: int, count: int) -> None:
    """Add ready jobs with nothing left to do but to complete: one chunk each, its vector stored."""
    span = _span(first, count) | {"document_status": "INDEXING", "version_status": "EMBEDDING", "delay": None}
    _write(connection, span, _DOCUMENTS, _VERSIONS, _CHUNKS, _VECTORS, _READY_JOBS, _CREATED_EVENTS)


def add_pending(connection: Connection, *, first: int, count: int, delay: str | None = None) -> None:
    """Add jobs of new documents, ten priorities: ready, or the n-th of all due in n times `delay`."""
    span = _span(first, count) | {"document_status": "UPLOADED", "version_status": "UPLOADED", "delay": delay}
    _write(connection, span, _DOCUMENTS, _VERSIONS, _READY_JOBS, _CREATED_EVENTS)


def add_finished(connection: Connection, *, first: int, count: int, worker_id: int) -> None:
    """Add INDEXED jobs."""
    span = _span(first, count) | {"document_status": "INDEXED", "version_status": "INDEXED"}
    span["worker_id"] = worker_id
    _write(connection, span, _DOCUMENTS, _VERSIONS, _FINISHED_JOBS, _CREATED_EVENTS)


def add_expired(connection: Connection, *, first: int, count: int, worker_id: int) -> None:
    """Add running jobs whose leases have expired; every tenth has spent its retries."""
    span = _span(first, count) | {"document_status": "INDEXING", "version_status": "EMBEDDING"}
    span["worker_id"] = worker_id
    _write(connection, span, _DOCUMENTS, _VERSIONS, _CHUNKS, _VECTORS, _EXPIRED_JOBS)
    _write(connection, span, _CREATED_EVENTS, _FAILED_ATTEMPTS, _STARTED_ATTEMPTS)


def settle(connection: Connection) -> None:
    """Leave the tables as autovacuum would in a while."""
    connection.execute("VACUUM ANALYZE")


def _span(first: int, count: int) -> dict[str, Any]:
    return {"first": first, "last": first + count - 1}


def _write(connection: Connection, values: Mapping[str, Any], *statements: str) -> None:
    with connection.transaction():
        connection.execute("SET LOCAL session_replication_role = replica")
        connection.execute(_FILE)
        for statement in statements:
            connection.execute(statement, values)
