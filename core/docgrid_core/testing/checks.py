"""The invariants of jobs, versions and vectors as queries: each finds the rows that break one.

Read by `invariants` alone. Every query is one SELECT of the subject's id, without any function of the server's
that DocGrid would have to install, and finds nothing in a database that is whole.
"""

from dataclasses import dataclass

from docgrid_core.testing.replay import EVENT_MOVES


@dataclass(frozen=True, slots=True)
class Check:
    """One query: `number` is the invariant's, `subject` what its ids are ids of, `what` is wrong with them."""

    number: int
    subject: str
    what: str
    query: str


def _event_moves() -> str:
    rows = (
        f"('{event.value}', {'NULL' if before is None else repr(before.value)}, '{after.value}')"
        for event, moves in EVENT_MOVES.items()
        for before, after in moves
    )
    return f"(VALUES {', '.join(rows)}) AS move (event_type, from_status, to_status)"


CHECKS = (
    # 1. Documents, versions, vectors.
    Check(
        1,
        "document",
        "has more than one version in flight",
        """
        SELECT document_id FROM document_versions WHERE status IN ('UPLOADED', 'PARSING', 'CHUNKED', 'EMBEDDING')
        GROUP BY document_id HAVING count(*) > 1
        """,
    ),
    Check(
        1,
        "version",
        "is in flight, but no live job of its own will bring it further",
        """
        SELECT v.id FROM document_versions v
        WHERE v.status IN ('UPLOADED', 'PARSING', 'CHUNKED', 'EMBEDDING')
          AND NOT EXISTS (SELECT FROM embedding_jobs j
                          WHERE j.document_version_id = v.id AND j.status IN ('PENDING', 'PROCESSING'))
        """,
    ),
    Check(
        1,
        "job",
        "is live, but its version is final or its document deleted",
        """
        SELECT j.id FROM embedding_jobs j
        JOIN document_versions v ON v.id = j.document_version_id
        JOIN documents d ON d.id = v.document_id
        WHERE j.status IN ('PENDING', 'PROCESSING')
          AND (v.status IN ('INDEXED', 'FAILED', 'CANCELED') OR d.deleted_at IS NOT NULL)
        """,
    ),
    Check(
        1,
        "document",
        "has a current version of another document",
        """
        SELECT d.id FROM documents d JOIN document_versions v ON v.id = d.current_version_id
        WHERE v.document_id <> d.id
        """,
    ),
    Check(
        1,
        "document",
        "is INDEXED without an INDEXED current version, or has one and is not INDEXED",
        """
        SELECT d.id FROM documents d LEFT JOIN document_versions v ON v.id = d.current_version_id
        WHERE d.deleted_at IS NULL AND (d.status = 'INDEXED') <> coalesce(v.status = 'INDEXED', false)
        """,
    ),
    Check(
        1,
        "document",
        "has a current version whose chunks are not exactly its ACTIVE embeddings of the searchable model",
        """
        SELECT d.id FROM documents d
        JOIN document_versions v ON v.id = d.current_version_id AND v.status = 'INDEXED'
        LEFT JOIN embedding_models m ON m.is_active AND m.is_searchable
        CROSS JOIN LATERAL (
          SELECT count(c.id) AS chunks, count(e.chunk_id) AS active,
                 count(*) FILTER (WHERE c.id IS NULL) AS strangers
          FROM (SELECT id FROM document_chunks WHERE document_version_id = v.id) AS c
          FULL JOIN (SELECT chunk_id FROM embeddings
                     WHERE document_version_id = v.id AND embedding_model_id = m.id AND status = 'ACTIVE') AS e
            ON e.chunk_id = c.id
        ) AS found
        WHERE d.deleted_at IS NULL AND (found.chunks = 0 OR found.chunks <> found.active OR found.strangers > 0)
        """,
    ),
    Check(
        1,
        "version",
        "has ACTIVE embeddings, but is neither in flight nor the current one of a document in use",
        """
        SELECT v.id FROM document_versions v JOIN documents d ON d.id = v.document_id
        WHERE EXISTS (SELECT FROM embeddings e WHERE e.document_version_id = v.id AND e.status = 'ACTIVE')
          AND (d.deleted_at IS NOT NULL
               OR v.status IN ('FAILED', 'CANCELED')
               OR v.status = 'INDEXED' AND v.id IS DISTINCT FROM d.current_version_id)
        """,
    ),
    Check(
        1,
        "chunk",
        "has an embedding that names another version or document",
        """
        SELECT c.id FROM embeddings e
        JOIN document_chunks c ON c.id = e.chunk_id
        JOIN document_versions v ON v.id = c.document_version_id
        WHERE e.document_version_id <> v.id OR e.document_id <> v.document_id
        """,
    ),
    # 2. Attempts.
    Check(
        2,
        "job",
        "has more than one STARTED attempt",
        """
        SELECT embedding_job_id FROM embedding_job_attempts WHERE status = 'STARTED'
        GROUP BY embedding_job_id HAVING count(*) > 1
        """,
    ),
    Check(
        2,
        "job",
        "has a STARTED attempt that is not of the claim which it is PROCESSING under",
        """
        SELECT j.id FROM embedding_job_attempts a JOIN embedding_jobs j ON j.id = a.embedding_job_id
        WHERE a.status = 'STARTED'
          AND (j.status, a.claim_token, a.worker_node_id)
              IS DISTINCT FROM ('PROCESSING', j.claim_token, j.locked_by_worker_id)
        """,
    ),
    Check(
        2,
        "job",
        "has attempts that are not numbered 1 to n",
        """
        SELECT embedding_job_id FROM embedding_job_attempts
        GROUP BY embedding_job_id
        HAVING min(attempt_no) <> 1 OR max(attempt_no) <> count(*) OR count(DISTINCT attempt_no) <> count(*)
        """,
    ),
    Check(
        2,
        "job",
        "is INDEXED without exactly one SUCCESS of its claim, or has one and is not INDEXED",
        """
        SELECT j.id FROM embedding_jobs j
        LEFT JOIN embedding_job_attempts a ON a.embedding_job_id = j.id AND a.status = 'SUCCESS'
        WHERE j.status = 'INDEXED' OR a.id IS NOT NULL
        GROUP BY j.id
        HAVING j.status <> 'INDEXED' OR count(a.id) <> 1
            OR count(a.id) FILTER (
                 WHERE a.claim_token = j.claim_token AND a.worker_node_id = j.locked_by_worker_id) <> 1
        """,
    ),
    # 3. The event log.
    Check(
        3,
        "job",
        "is INDEXED without exactly one INDEXED event, or has one and is not INDEXED",
        """
        SELECT j.id FROM embedding_jobs j
        LEFT JOIN indexing_events e ON e.embedding_job_id = j.id AND e.event_type = 'INDEXED'
        GROUP BY j.id HAVING count(e.id) <> CASE WHEN j.status = 'INDEXED' THEN 1 ELSE 0 END
        """,
    ),
    Check(
        3,
        "job",
        "has another number of LOCKED events than of claims",
        """
        SELECT j.id FROM embedding_jobs j
        LEFT JOIN indexing_events e ON e.embedding_job_id = j.id
        GROUP BY j.id
        HAVING count(*) FILTER (WHERE e.event_type = 'LOCKED')
               <> count(*) FILTER (WHERE e.from_status = 'PROCESSING' AND e.to_status <> 'PROCESSING')
                  + CASE WHEN j.status = 'PROCESSING' THEN 1 ELSE 0 END
            OR count(*) FILTER (WHERE e.event_type = 'LOCKED')
               < (SELECT count(*) FROM embedding_job_attempts a WHERE a.embedding_job_id = j.id)
        """,
    ),
    Check(
        3,
        "job",
        "has an event that does not follow from the one before it, or that its type does not allow",
        f"""
        SELECT embedding_job_id FROM (
          SELECT *, lag(to_status) OVER (PARTITION BY embedding_job_id ORDER BY id) AS before
          FROM indexing_events
        ) AS e
        WHERE e.from_status IS DISTINCT FROM e.before
           OR NOT EXISTS (SELECT FROM {_event_moves()}
                          WHERE move.event_type = e.event_type AND move.to_status = e.to_status
                            AND move.from_status IS NOT DISTINCT FROM e.from_status)
        """,  # noqa: S608 - composed of constants
    ),
    Check(
        3,
        "job",
        "is in another state than its events lead to",
        """
        SELECT j.id FROM embedding_jobs j
        WHERE j.status IS DISTINCT FROM (
          SELECT to_status FROM indexing_events e WHERE e.embedding_job_id = j.id ORDER BY e.id DESC LIMIT 1)
        """,
    ),
    # 4. Retries and ownership.
    Check(
        4,
        "job",
        "has spent more retries than it has",
        "SELECT id FROM embedding_jobs WHERE retry_count > max_retry_count",
    ),
    Check(
        4,
        "job",
        "has more FAILED attempts than its retries and manual retries allow",
        """
        SELECT j.id FROM embedding_jobs j
        WHERE (SELECT count(*) FROM embedding_job_attempts a
               WHERE a.embedding_job_id = j.id AND a.status = 'FAILED')
              > j.max_retry_count + 1
                + (SELECT count(*) FROM indexing_events e
                   WHERE e.embedding_job_id = j.id AND e.event_type = 'MANUAL_RETRY')
        """,
    ),
    Check(
        4,
        "job",
        "is PENDING with an owner",
        """
        SELECT id FROM embedding_jobs
        WHERE status = 'PENDING' AND num_nonnulls(locked_by_worker_id, claim_token, locked_at, lock_expires_at) > 0
        """,
    ),
    Check(
        4,
        "job",
        "is PROCESSING without an owner",
        """
        SELECT id FROM embedding_jobs
        WHERE status = 'PROCESSING'
          AND num_nulls(locked_by_worker_id, claim_token, locked_at, lock_expires_at) > 0
        """,
    ),
)
