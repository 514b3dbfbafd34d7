"""The checker finds every kind of damage, and nothing in what the protocol leaves."""

import pytest

from docgrid_core.database import Database
from docgrid_core.errors import InternalError
from docgrid_core.jobs import JOB_MOVES, EventType, FailureType
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import control, documents, fail, release
from docgrid_core.store.fail import Report
from docgrid_core.testing import factories
from docgrid_core.testing.checks import CHECKS
from docgrid_core.testing.factories import Stage
from docgrid_core.testing.invariants import (
    LOOK,
    MAX_SUBJECTS,
    SearchViewReader,
    check_search_view,
    violations,
)
from docgrid_core.testing.replay import EVENT_MOVES
from support import races, tables

CONTENT_INVALID = Report(FailureType.DOCUMENT_CONTENT_INVALID, "broken")
CRASHED = Report(FailureType.WORKER_INTERNAL_ERROR, "crashed")


def lead_every_life(db: Database) -> None:
    """Leave a job in every state that the protocol knows, and documents of every kind."""
    policy = RetryPolicy()
    for stage in Stage:
        factories.run(db, stage)
    factories.run(db, Stage.COMPLETED, document=factories.register(db, "twice"))
    factories.run(db, Stage.COMPLETED, document=factories.register(db, "twice", "changed"))
    factories.run(db, Stage.COMPLETED, document=factories.register(db, "deleted"))
    documents.delete(db, factories.register(db, "deleted").document_id, reason="", by="test")
    failed = factories.run(db, Stage.VECTORS_STORED)
    fail.fail(db, failed.own, CONTENT_INVALID, policy=policy)
    retried = factories.run(db)
    fail.fail(db, retried.own, CONTENT_INVALID, policy=policy)
    control.retry(db, retried.claim.job_id, reason="", by="test")
    control.cancel(db, retried.claim.job_id, reason="", by="test")
    delayed = factories.run(db, Stage.CHUNKS_STORED)
    fail.fail(db, delayed.own, CRASHED, policy=policy)
    given_back = factories.run(db)
    release.release(db, given_back.claim, reason="test")


def test_the_protocol_leaves_nothing_to_find(db: Database) -> None:
    lead_every_life(db)

    assert violations(db) == []


def test_an_empty_database_is_whole(db: Database) -> None:
    assert violations(db) == []


NAMES = {
    "current": "(SELECT current_version_id FROM documents WHERE status = 'INDEXED')",
    "one_chunk": "(SELECT min(chunk_id) FROM embeddings WHERE document_version_id ="
    " (SELECT current_version_id FROM documents WHERE status = 'INDEXED'))",
    "no_owner": "locked_by_worker_id = NULL, claim_token = NULL, locked_at = NULL, lock_expires_at = NULL",
}

# What a constraint forbids is damaged without it: the checker must find it all the same.
DAMAGES = {
    "has more than one version in flight": [
        """
        DROP INDEX document_versions_in_flight_key;
        INSERT INTO document_versions (document_id, version_no, file_object_id, original_filename, content_type,
                                       file_hash, status)
        SELECT document_id, 2, file_object_id, 'f', 't', file_hash, 'UPLOADED'
        FROM document_versions WHERE status = 'UPLOADED'
        """,
    ],
    "is in flight, but no live job of its own will bring it further": [
        "UPDATE embedding_jobs SET status = 'CANCELED' WHERE status = 'PENDING'",
    ],
    "is live, but its version is final or its document deleted": [
        "UPDATE document_versions SET status = 'FAILED' WHERE status = 'UPLOADED'",
        "UPDATE documents SET status = 'DELETED', deleted_at = now() WHERE status = 'INDEXING'",
    ],
    "has a current version of another document": [
        "UPDATE documents SET current_version_id = {current} WHERE status = 'UPLOADED'",
    ],
    "is INDEXED without an INDEXED current version, or has one and is not INDEXED": [
        "UPDATE documents SET status = 'INDEXED' WHERE status = 'UPLOADED'",
        "UPDATE documents SET status = 'FAILED' WHERE status = 'INDEXED'",
        "UPDATE documents SET current_version_id = NULL WHERE status = 'INDEXED'",
    ],
    "has a current version whose chunks are not exactly its ACTIVE embeddings of the searchable model": [
        "UPDATE embeddings SET status = 'STALE' WHERE chunk_id = {one_chunk}",
        "DELETE FROM embeddings WHERE chunk_id = {one_chunk}",
        """
        DELETE FROM embeddings WHERE document_version_id = {current};
        DELETE FROM document_chunks WHERE document_version_id = {current}
        """,
        """
        UPDATE embeddings SET document_version_id = {current} WHERE document_version_id <> {current}
        AND status = 'ACTIVE'
        """,
        "UPDATE embedding_models SET is_searchable = false",
    ],
    "has ACTIVE embeddings, but is neither in flight nor the current one of a document in use": [
        "UPDATE embeddings SET status = 'ACTIVE' WHERE status = 'STALE'",
        "UPDATE documents SET current_version_id = NULL WHERE current_version_id = {current}",
        "UPDATE documents SET status = 'DELETED', deleted_at = now() WHERE status = 'INDEXED'",
    ],
    "has an embedding that names another version or document": [
        "UPDATE embeddings SET document_id = document_id + 1 WHERE chunk_id = {one_chunk}",
        "UPDATE embeddings SET document_version_id = document_version_id + 1 WHERE chunk_id = {one_chunk}",
    ],
    "has more than one STARTED attempt": [
        """
        INSERT INTO embedding_job_attempts (embedding_job_id, worker_node_id, attempt_no, claim_token, status)
        SELECT embedding_job_id, worker_node_id, 2, gen_random_uuid(), 'STARTED' FROM embedding_job_attempts
        WHERE status = 'STARTED'
        """,
    ],
    "has a STARTED attempt that is not of the claim which it is PROCESSING under": [
        "UPDATE embedding_job_attempts SET claim_token = gen_random_uuid() WHERE status = 'STARTED'",
        "UPDATE embedding_jobs SET status = 'PENDING', {no_owner} WHERE status = 'PROCESSING'",
        """
        UPDATE embedding_job_attempts SET worker_node_id = (SELECT min(id) FROM worker_nodes)
        WHERE status = 'STARTED'
        """,
    ],
    "has attempts that are not numbered 1 to n": [
        "UPDATE embedding_job_attempts SET attempt_no = 2 WHERE status = 'STARTED'",
    ],
    "is INDEXED without exactly one SUCCESS of its claim, or has one and is not INDEXED": [
        "UPDATE embedding_job_attempts SET status = 'RELEASED' WHERE status = 'SUCCESS'",
        "UPDATE embedding_job_attempts SET claim_token = gen_random_uuid() WHERE status = 'SUCCESS'",
        "UPDATE embedding_jobs SET status = 'CANCELED', {no_owner} WHERE status = 'INDEXED'",
    ],
    "is INDEXED without exactly one INDEXED event, or has one and is not INDEXED": [
        "DELETE FROM indexing_events WHERE event_type = 'INDEXED'",
        """
        INSERT INTO indexing_events (embedding_job_id, event_type, from_status, to_status)
        SELECT embedding_job_id, event_type, from_status, to_status FROM indexing_events
        WHERE event_type = 'INDEXED'
        """,
        "UPDATE embedding_jobs SET status = 'CANCELED', {no_owner} WHERE status = 'INDEXED'",
    ],
    "has another number of LOCKED events than of claims": [
        "DELETE FROM indexing_events WHERE event_type = 'LOCKED'",
        """
        INSERT INTO embedding_job_attempts (embedding_job_id, worker_node_id, attempt_no, claim_token, status,
        ended_at) SELECT embedding_job_id, worker_node_id, 2, gen_random_uuid(), 'RELEASED', now()
        FROM embedding_job_attempts WHERE status = 'STARTED'
        """,
    ],
    "has an event that does not follow from the one before it, or that its type does not allow": [
        "UPDATE indexing_events SET from_status = 'FAILED' WHERE event_type = 'LOCKED'",
        "UPDATE indexing_events SET event_type = 'RETRY' WHERE event_type = 'LOCKED'",
        "DELETE FROM indexing_events WHERE event_type = 'JOB_CREATED'",
    ],
    "is in another state than its events lead to": [
        "UPDATE embedding_jobs SET status = 'CANCELED' WHERE status = 'PENDING'",
        "DELETE FROM indexing_events",
    ],
    "has spent more retries than it has": [
        """
        ALTER TABLE embedding_jobs DROP CONSTRAINT embedding_jobs_retry_count_check;
        UPDATE embedding_jobs SET retry_count = max_retry_count + 1 WHERE status = 'PENDING'
        """,
    ],
    "has more FAILED attempts than its retries and manual retries allow": [
        """
        INSERT INTO embedding_job_attempts (embedding_job_id, worker_node_id, attempt_no, claim_token, status,
        ended_at, failure_type) SELECT embedding_job_id, worker_node_id, n, gen_random_uuid(), 'FAILED', now(),
        'WORKER_CRASHED' FROM embedding_job_attempts, generate_series(2, 5) AS n WHERE status = 'FAILED'
        """,
    ],
    "is PENDING with an owner": [
        """
        ALTER TABLE embedding_jobs DROP CONSTRAINT embedding_jobs_pending_check;
        UPDATE embedding_jobs SET claim_token = gen_random_uuid() WHERE status = 'PENDING'
        """,
    ],
    "is PROCESSING without an owner": [
        """
        ALTER TABLE embedding_jobs DROP CONSTRAINT embedding_jobs_processing_check;
        UPDATE embedding_jobs SET claim_token = NULL WHERE status = 'PROCESSING'
        """,
    ],
    "was INDEXED, but search does not see exactly one complete version of it": [
        "UPDATE embeddings SET status = 'STALE' WHERE chunk_id = {one_chunk}",
        "UPDATE embeddings SET status = 'STALE' WHERE document_version_id = {current}",
        "UPDATE documents SET status = 'INDEXING' WHERE status = 'INDEXED'",
        "UPDATE embedding_models SET is_active = false",
    ],
}


def prepare(db: Database) -> None:
    """Leave one job of each state that a damage is done to."""
    factories.run(db, Stage.COMPLETED)
    failed = factories.run(db, Stage.VECTORS_STORED)
    fail.fail(db, failed.own, CONTENT_INVALID, policy=RetryPolicy())
    factories.run(db, Stage.VECTORS_STORED)
    factories.register(db)


@pytest.mark.parametrize(
    ("what", "damage"),
    [
        pytest.param(what, damage, id=f"{what} {number}")
        for what, damages in DAMAGES.items()
        for number, damage in enumerate(damages, 1)
    ],
)
def test_every_damage_is_found(db: Database, what: str, damage: str) -> None:
    prepare(db)
    assert violations(db) == []

    for statement in damage.format(**NAMES).split(";"):
        tables.change(db, statement)

    assert what in {violation.what for violation in violations(db)}


def test_every_check_is_tried() -> None:
    assert {check.what for check in CHECKS} == set(DAMAGES) - {LOOK}


def test_a_violation_says_which_invariant_and_what(db: Database) -> None:
    job = factories.run(db).claim.job_id
    tables.change(db, "UPDATE embedding_job_attempts SET attempt_no = 7")

    (violation,) = violations(db)

    assert str(violation) == f"invariant 2: job {job} has attempts that are not numbered 1 to n"


def test_the_number_of_violations_is_bounded(db: Database) -> None:
    for _ in range(MAX_SUBJECTS + 2):
        factories.register(db)
    tables.change(db, "DELETE FROM indexing_events")

    assert len(violations(db)) == MAX_SUBJECTS


def test_a_database_at_work_is_judged_by_one_moment(
    db: Database, database_settings: DatabaseSettings
) -> None:
    """The checker's snapshot: what is committed while it reads breaks nothing for it."""
    with (
        races.connected(database_settings) as checker,
        races.Frozen(checker, lambda: violations(checker), before=5) as frozen,
    ):
        prepare(db)
        frozen.thaw()

        assert frozen.call.result() == []


def test_the_moves_of_the_events_are_the_moves_of_the_jobs() -> None:
    told = {
        (before, after)
        for moves in EVENT_MOVES.values()
        for before, after in moves
        if before is not None and before is not after
    }

    assert told == {(before, after) for before, moves in JOB_MOVES.items() for after in moves}
    assert set(EVENT_MOVES) == set(EventType)


def test_a_continuous_reader_sees_one_version_through_a_switch(
    db: Database, database_settings: DatabaseSettings
) -> None:
    factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper"))
    with races.connected(database_settings) as other, SearchViewReader(other) as reader:
        for content in "abc":
            factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper", content))

    assert reader.looks > 3
    assert reader.violations == set()


def test_a_continuous_reader_sees_a_document_that_is_gone_for_a_moment(
    db: Database, database_settings: DatabaseSettings
) -> None:
    document = factories.run(db, Stage.COMPLETED).document
    with races.connected(database_settings) as other, SearchViewReader(other) as reader:
        tables.change(db, "UPDATE documents SET status = 'INDEXING'")
        races.wait_until(lambda: reader.violations)
        tables.change(db, "UPDATE documents SET status = 'INDEXED'")

    assert {violation.subject for violation in reader.violations} == {f"document {document.document_id}"}
    assert check_search_view(db) == []


def test_a_continuous_reader_outlives_a_database_that_is_away(
    db: Database, database_settings: DatabaseSettings
) -> None:
    with (
        races.connected(database_settings, application_name="reader") as other,
        SearchViewReader(other) as reader,
    ):
        races.wait_until(lambda: reader.looks)
        tables.change(
            db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'reader'"
        )
        looks = reader.looks
        races.wait_until(lambda: reader.looks > looks + 1)

    assert reader.violations == set()


def test_a_continuous_reader_does_not_hide_its_own_failure(
    db: Database, database_settings: DatabaseSettings
) -> None:
    def watch() -> None:
        with races.connected(database_settings) as other, SearchViewReader(other) as reader:
            tables.change(db, "DROP TABLE embeddings")
            races.wait_until(lambda: not reader.is_alive)

    with pytest.raises(InternalError):
        watch()
