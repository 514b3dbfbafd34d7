"""Completion: verified whole, switched in one transaction, replayed for ever, refused without a trace."""

import uuid
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from docgrid_core.database import Database
from docgrid_core.errors import (
    AttemptMismatch,
    CompletionNotAllowed,
    DocGridError,
    IndexingSetInconsistent,
    JobNotProcessing,
    JobOwnershipLost,
    NewerVersionExists,
)
from docgrid_core.jobs import AttemptId, FailureType
from docgrid_core.records import ClaimToken, EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import (
    claim,
    complete,
    control,
    documents,
    fail,
    search,
)
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Execution, Stage
from support import tables

REPORT = fail.Report(FailureType.WORKER_INTERNAL_ERROR, "it broke")


def ready(db: Database, name: str = "a", content: str = "new") -> Execution:
    """Return an execution that has stored everything and only has to complete."""
    return factories.run(db, Stage.VECTORS_STORED, document=factories.register(db, name, content))


def refused(db: Database, run: Execution, error: type[DocGridError]) -> None:
    before = tables.dump(db)
    with pytest.raises(error):
        complete.complete(db, run.own)
    assert tables.dump(db) == before


def seen(db: Database, model: EmbeddingModel) -> set[int]:
    """Return the version numbers that a search finds."""
    return {hit.version_no for hit in search.search(db, model, np.ones(8).tolist(), top_k=50)}


def test_a_completion_ends_attempt_job_version_and_document_at_one_time(db: Database) -> None:
    run = ready(db)

    done = complete.complete(db, run.own)

    job_id = run.claim.job_id
    job, version, document = tables.job(db, job_id), tables.version(db, job_id), tables.document(db, job_id)
    (attempt,) = tables.attempts(db, job_id)
    assert (job.status, version.status, document.status, attempt.status) == (
        "INDEXED",
        "INDEXED",
        "INDEXED",
        "SUCCESS",
    )
    times = {
        job.completed_at,
        job.updated_at,
        version.indexed_at,
        document.updated_at,
        attempt.ended_at,
        done.completed_at,
    }
    assert len(times) == 1
    assert document.current_version_id == run.document.version_id
    assert attempt.duration_ms == pytest.approx(
        (attempt.ended_at - attempt.started_at) / timedelta(milliseconds=1), abs=1
    )
    assert tables.events(db, job_id)[-1] == "INDEXED"
    assert (job.locked_by_worker_id, job.claim_token) == (run.worker.id, run.claim.token.value)


def test_search_sees_the_old_version_until_the_switch_and_then_only_the_new(
    db: Database, model: EmbeddingModel
) -> None:
    old = factories.index(db, "a", "old")
    run = ready(db)
    assert seen(db, model) == {1}

    complete.complete(db, run.own)

    assert seen(db, model) == {2}
    stale = tables.fetch(db, "SELECT DISTINCT status FROM embeddings WHERE document_version_id = :id", id=old)
    assert [row.status for row in stale] == ["STALE"]
    assert tables.vectors(db, run.claim.job_id) == {"ACTIVE": 3}


def test_the_first_version_is_not_made_stale_by_its_own_completion(db: Database) -> None:
    factories.index(db)
    assert tables.value(db, "SELECT count(*) FROM embeddings WHERE status = 'ACTIVE'") == 3


def test_the_same_completion_again_is_answered_whatever_the_lease_is(db: Database) -> None:
    run = ready(db)
    first = complete.complete(db, run.own)
    tables.change(db, "UPDATE embedding_jobs SET lock_expires_at = locked_at + interval '1 microsecond'")
    documents.delete(db, run.document.document_id, reason="", by="test")
    before = tables.dump(db)

    assert complete.complete(db, run.own) == first
    assert tables.dump(db) == before


def test_only_the_claim_that_completed_is_answered_again(db: Database) -> None:
    run = ready(db)
    complete.complete(db, run.own)
    stranger = factories.register_worker(db)

    refused(db, replace(run, own=replace(run.own, token=ClaimToken(uuid.uuid4()))), JobOwnershipLost)
    refused(db, replace(run, own=replace(run.own, worker_id=stranger.id)), JobOwnershipLost)


def test_only_the_attempt_that_completed_is_answered_again(db: Database) -> None:
    run = factories.run(db)
    fail.fail(db, run.own, REPORT, policy=RetryPolicy())
    tables.come_due(db)
    claim.promote(db)
    again = factories.run(db, Stage.COMPLETED, document=run.document)

    refused(db, replace(again, own=replace(again.own, attempt_id=run.own.attempt_id)), AttemptMismatch)
    refused(db, replace(again, own=replace(again.own, attempt_id=AttemptId(0))), AttemptMismatch)


@pytest.mark.parametrize("end", ["failed", "canceled", "deleted", "retried"])
def test_a_job_that_ended_otherwise_is_not_completed(db: Database, end: str) -> None:
    run = ready(db)
    if end == "failed":
        report = fail.Report(FailureType.DOCUMENT_CONTENT_INVALID, "bad")
        fail.fail(db, run.own, report, policy=RetryPolicy())
    elif end == "retried":
        fail.fail(db, run.own, REPORT, policy=RetryPolicy())
    elif end == "canceled":
        control.cancel(db, run.claim.job_id, reason="test", by="test")
    else:
        documents.delete(db, run.document.document_id, reason="", by="test")
    refused(db, run, JobNotProcessing)


@pytest.mark.parametrize("flag", ["is_active", "is_searchable"])
def test_a_job_of_a_model_that_is_no_longer_the_active_one_is_not_completed(db: Database, flag: str) -> None:
    run = ready(db)
    tables.change(db, f"UPDATE embedding_models SET {flag} = false")  # noqa: S608
    refused(db, run, CompletionNotAllowed)


def test_a_version_that_was_not_embedded_is_not_completed(db: Database) -> None:
    refused(db, factories.run(db, Stage.CHUNKS_STORED), CompletionNotAllowed)


def test_a_document_that_was_marked_deleted_is_not_completed(db: Database) -> None:
    run = ready(db)
    tables.change(db, "UPDATE documents SET status = 'DELETED', deleted_at = now()")
    refused(db, run, CompletionNotAllowed)


@pytest.mark.parametrize("newer", ["CANCELED", "FAILED"])
def test_an_older_version_than_the_newest_never_becomes_searchable(db: Database, newer: str) -> None:
    """Whatever became of the newer one."""
    run = ready(db)
    tables.change(
        db,
        "INSERT INTO document_versions (document_id, version_no, file_object_id, original_filename, content_type,"
        " file_hash, status) SELECT document_id, 2, file_object_id, '', '', file_hash, :status FROM document_versions",
        status=newer,
    )
    refused(db, run, NewerVersionExists)


def test_a_current_version_of_another_document_is_a_fault(db: Database) -> None:
    other = factories.index(db)
    run = ready(db)
    tables.change(
        db,
        "UPDATE documents SET current_version_id = :other WHERE id = :id",
        other=other,
        id=run.document.document_id,
    )
    refused(db, run, IndexingSetInconsistent)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM embeddings",
        "DELETE FROM embeddings WHERE chunk_id = (SELECT min(chunk_id) FROM embeddings)",
        "UPDATE embeddings SET status = 'STALE' WHERE chunk_id = (SELECT min(chunk_id) FROM embeddings)",
        "UPDATE embeddings SET document_id = document_id + 1",
        "UPDATE embeddings SET vector_hash = ''",
        """INSERT INTO document_chunks (document_version_id, chunk_index, chunk_text, token_count, char_start,
             char_end, content_hash) SELECT document_version_id, 3, 'x', 1, 0, 1, 'x' FROM document_chunks LIMIT 1""",
        """ALTER TABLE embeddings_m1 DROP CONSTRAINT embeddings_m1_dimension_check;
           DROP INDEX embeddings_m1_vector_idx;
           UPDATE embeddings SET vector = '[1,2]'""",
        "DELETE FROM embeddings; DELETE FROM document_chunks",
    ],
    ids=[
        "none",
        "one missing",
        "one stale",
        "other document",
        "no hash",
        "chunk more",
        "dimension",
        "no chunks",
    ],
)
def test_a_set_that_is_not_whole_is_never_switched_to(db: Database, damage: str) -> None:
    run = ready(db)
    tables.change(db, damage)
    refused(db, run, IndexingSetInconsistent)


def test_vectors_of_another_versions_chunks_are_never_switched_to(db: Database) -> None:
    factories.index(db, "other")
    run = ready(db)
    tables.change(
        db,
        "WITH mine AS (DELETE FROM embeddings WHERE document_version_id = :mine)"
        " UPDATE embeddings SET document_version_id = :mine, document_id = :document",
        mine=run.document.version_id,
        document=run.document.document_id,
    )
    refused(db, run, IndexingSetInconsistent)
