"""Completion: verified whole, switched in one transaction, replayed for ever, refused without a trace."""

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial

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
    LeaseExpired,
    NewerVersionExists,
)
from docgrid_core.jobs import AttemptId, FailureType, StopReason
from docgrid_core.records import ClaimToken, Completion, EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import (
    claim,
    complete,
    control,
    documents,
    embed,
    fail,
    leases,
    recovery,
    search,
    workers,
)
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Execution, Stage
from support import races, tables

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


def test_a_reader_sees_exactly_one_whole_version_at_every_moment_of_a_switch(
    db: Database, database_settings: DatabaseSettings, model: EmbeddingModel
) -> None:
    versions = [factories.index(db, "a", "content 0")]
    over = threading.Event()
    view = f"SELECT document_version_id AS id, count(*) AS number FROM {search.VISIBLE} GROUP BY 1"  # noqa: S608

    def watch() -> set[tuple[tuple[int, int], ...]]:
        views = set()
        with races.connected(database_settings) as reader:
            while not over.is_set():
                rows = tables.fetch(reader, view.format(model_id=model.id))
                views.add(tuple((row.id, row.number) for row in rows))
        return views

    watching = races.Call(watch)
    versions += [complete.complete(db, ready(db, "a", f"content {n}").own).version_id for n in range(1, 8)]
    over.set()

    assert watching.result() <= {((version, 3),) for version in versions}


def test_the_same_completion_again_is_answered_whatever_the_lease_is(db: Database) -> None:
    run = ready(db)
    first = complete.complete(db, run.own)
    tables.change(db, "UPDATE embedding_jobs SET lock_expires_at = locked_at + interval '1 microsecond'")
    documents.delete(db, run.document.document_id, reason="", by="test")
    before = tables.dump(db)

    assert complete.complete(db, run.own) == first
    assert tables.dump(db) == before


def test_two_completions_at_once_are_one(db: Database) -> None:
    run = ready(db)

    outcomes = races.together([partial(complete.complete, db, run.own)] * 4)

    assert isinstance(outcomes[0], Completion)
    assert outcomes == [outcomes[0]] * 4
    assert tables.events(db, run.claim.job_id).count("INDEXED") == 1


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


def test_no_second_run_completes_when_the_lease_ran_out_under_the_first(db: Database) -> None:
    """Case 1: renewals are stuck, the job is given to another; the loser's finish is refused by its token."""
    loser = ready(db)
    tables.expire_lease(db, loser.claim.job_id)
    refused(db, loser, LeaseExpired)
    recovery.recover_batch(db, limit=10, policy=RetryPolicy())
    refused(db, loser, JobNotProcessing)
    winner = factories.run(db, document=loser.document)
    refused(db, loser, JobOwnershipLost)
    assert leases.renew(db, loser.worker, [loser.claim], lease_duration=LEASE) == {
        loser.claim.job_id: leases.Renewal.LOST
    }

    factories.advance(db, winner.own, Stage.COMPLETED)

    refused(db, loser, JobOwnershipLost)
    assert [attempt.status for attempt in tables.attempts(db, loser.claim.job_id)] == ["FAILED", "SUCCESS"]
    assert tables.events(db, loser.claim.job_id).count("INDEXED") == 1


@pytest.mark.parametrize("recovered", [False, True])
def test_a_worker_marked_dead_that_finishes_leaves_exactly_one_terminal_state(
    db: Database, recovered: bool
) -> None:
    """Case 6: before recovery its lease still holds and it may complete; after it, it is refused."""
    run = factories.run(db, Stage.VECTORS_STORED, worker=factories.register_worker(db, pod_uid="pod"))
    workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.HEARTBEAT_OVERDUE)
    if recovered:
        assert recovery.recover_batch(db, limit=10, policy=RetryPolicy()) == recovery.RecoveryReport(
            retried=1
        )
        refused(db, run, JobNotProcessing)
        run = factories.run(db, document=run.document)
    factories.advance(db, run.own, Stage.COMPLETED)
    assert recovery.recover_batch(db, limit=10, policy=RetryPolicy()) == recovery.RecoveryReport()
    assert tables.job(db, run.claim.job_id).status == "INDEXED"
    assert tables.events(db, run.claim.job_id).count("INDEXED") == 1


@pytest.mark.parametrize("rival", ["recovery", "cancel", "delete", "supersede"])
def test_a_completion_that_races_with_an_end_leaves_one_of_them_whole(db: Database, rival: str) -> None:
    for attempt in range(5):
        run = ready(db, f"{rival} {attempt}")
        # The lease is over by the time that recovery looks, or not yet when the completion locks the job.
        if rival == "recovery":
            tables.change(
                db,
                "UPDATE embedding_jobs SET lock_expires_at = clock_timestamp() + interval '20 milliseconds'"
                " WHERE id = :id",
                id=run.claim.job_id,
            )
        ends: dict[str, Callable[[], object]] = {
            "recovery": partial(recovery.recover_batch, db, limit=10, policy=RetryPolicy()),
            "cancel": partial(control.cancel, db, run.claim.job_id, reason="test", by="test"),
            "delete": partial(documents.delete, db, run.document.document_id, reason="", by="test"),
            "supersede": partial(
                documents.register, db, factories.source(f"{rival} {attempt}", "newest"), supersede=True
            ),
        }

        outcomes = races.together([partial(complete.complete, db, run.own), ends[rival]])

        assert races.faults(outcomes) == []
        completed = isinstance(outcomes[0], Completion)
        status = tables.job(db, run.claim.job_id).status
        assert (status == "INDEXED") == completed
        assert tables.events(db, run.claim.job_id).count("INDEXED") == completed
        (last,) = tables.attempts(db, run.claim.job_id)
        assert (last.status == "SUCCESS") == completed
        tables.change(db, "UPDATE embedding_jobs SET next_retry_at = now() WHERE status = 'PENDING'")


@pytest.mark.parametrize("change", ["superseded", "deleted"])
def test_a_document_that_changes_while_it_is_embedded_discards_the_old_result(
    db: Database, model: EmbeddingModel, change: str
) -> None:
    """Case 27: the late vectors are refused; no row of them remains."""
    run = factories.run(db, Stage.EMBED_PREPARED, document=factories.register(db, "a", "old"))
    task = embed.prepare(db, run.own)
    assert task is not None
    if change == "deleted":
        documents.delete(db, run.document.document_id, reason="", by="test")
    else:
        documents.register(db, factories.source("a", "new"), supersede=True)

    with pytest.raises(JobNotProcessing):
        factories.store_vectors(db, run.own, task)
    refused(db, run, JobNotProcessing)

    assert tables.vectors(db, run.claim.job_id) == {}
    if change == "superseded":
        factories.advance(db, factories.start_next(db), Stage.COMPLETED)
        assert seen(db, model) == {2}
    else:
        assert seen(db, model) == set()


def test_indexing_a_document_again_leaves_one_active_set(db: Database, model: EmbeddingModel) -> None:
    """Case 28: the same bytes by force, then other ones, and a document of the same content beside it."""
    factories.index(db, "a", "same")
    factories.index(db, "b", "same")
    documents.register(db, factories.source("a", "same"), force=True)
    factories.advance(db, factories.start_next(db), Stage.COMPLETED)
    factories.index(db, "a", "other")

    rows = tables.fetch(
        db,
        "SELECT document_id, document_version_id, count(*) AS number"
        " FROM embeddings WHERE status = 'ACTIVE' GROUP BY 1, 2",
    )
    assert [row.number for row in rows] == [3, 3]
    assert len({row.document_id for row in rows}) == 2
    assert seen(db, model) == {1, 3}
