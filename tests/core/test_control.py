"""Cancel and retry: what a person decides about a job."""

from collections.abc import Callable
from functools import partial

import pytest

from docgrid_core.database import Database
from docgrid_core.errors import CancelNotAllowed, JobNotFound, RetryNotAllowed
from docgrid_core.jobs import FailureType, JobId
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import control, documents, fail, models, release
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Execution, Stage
from support import races, tables

POLICY = RetryPolicy()
CONTENT = fail.Report(FailureType.DOCUMENT_CONTENT_INVALID, "no text in it")


def cancel(db: Database, job_id: JobId) -> None:
    control.cancel(db, job_id, reason="not wanted", by="ann")


def retry(db: Database, job_id: JobId) -> None:
    control.retry(db, job_id, reason="fixed", by="ann")


def failed(db: Database, stage: Stage = Stage.STARTED, name: str = "a") -> Execution:
    run = factories.run(db, stage, document=factories.register(db, name, "new"))
    fail.fail(db, run.own, CONTENT, policy=POLICY)
    return run


@pytest.mark.parametrize("stage", [None, *Stage][:-1])
def test_a_canceled_job_takes_version_attempt_and_vectors_with_it(db: Database, stage: Stage | None) -> None:
    document = factories.register(db)
    if stage is not None:
        factories.run(db, stage, document=document)
    assert document.job_id is not None

    cancel(db, document.job_id)

    job = tables.job(db, document.job_id)
    owner = (job.locked_by_worker_id, job.claim_token, job.locked_at, job.lock_expires_at)
    assert (job.status, owner) == ("CANCELED", (None,) * 4)
    assert tables.version(db, document.job_id).status == "CANCELED"
    assert tables.document(db, document.job_id).status == "UPLOADED"
    assert {a.status for a in tables.attempts(db, document.job_id)} <= {"RELEASED"}
    assert set(tables.vectors(db, document.job_id)) <= {"STALE"}
    row = tables.fetch(db, "SELECT * FROM indexing_events ORDER BY id")[-1]
    assert (row.event_type, row.message, row.metadata["by"]) == ("CANCELED", "not wanted", "ann")
    assert row.from_status == ("PENDING" if stage is None else "PROCESSING")


def test_a_delayed_job_can_be_canceled(db: Database) -> None:
    document = factories.register(db)
    tables.change(db, "UPDATE embedding_jobs SET next_retry_at = now() + interval '1 hour'")
    assert document.job_id is not None
    cancel(db, document.job_id)
    assert tables.job(db, document.job_id).next_retry_at is None


def test_canceling_a_newer_version_leaves_the_searchable_one(db: Database) -> None:
    factories.index(db, "a", "old")
    run = factories.run(db, Stage.VECTORS_STORED, document=factories.register(db, "a", "new"))
    cancel(db, run.claim.job_id)
    assert tables.document(db, run.claim.job_id).status == "INDEXED"
    assert tables.value(db, "SELECT count(*) FROM embeddings WHERE status = 'ACTIVE'") == 3


def test_an_ended_job_can_not_be_canceled(db: Database) -> None:
    factories.index(db, "b")
    run = failed(db)
    canceled = factories.register(db).job_id
    assert canceled is not None
    cancel(db, canceled)
    before = tables.dump(db)
    for job_id in (JobId(1), run.claim.job_id, canceled):
        with pytest.raises(CancelNotAllowed):
            cancel(db, job_id)
    with pytest.raises(JobNotFound):
        cancel(db, JobId(canceled + 1))
    assert tables.dump(db) == before


def test_a_worker_gives_up_a_version_that_was_superseded(db: Database) -> None:
    run = factories.run(db, Stage.VECTORS_STORED)
    control.cancel_own(db, run.own, reason="a newer version exists")
    assert tables.job(db, run.claim.job_id).status == "CANCELED"
    assert tables.fetch(db, "SELECT * FROM indexing_events ORDER BY id")[-1].metadata["by"] == "worker"


@pytest.mark.parametrize(
    ("stage", "resume"),
    [
        (Stage.STARTED, "UPLOADED"),
        (Stage.PARSE_PREPARED, "UPLOADED"),
        (Stage.CHUNKS_STORED, "CHUNKED"),
        (Stage.VECTORS_STORED, "CHUNKED"),
    ],
)
def test_a_retried_job_has_one_more_execution_from_its_resume_point(
    db: Database, stage: Stage, resume: str
) -> None:
    run = failed(db, stage)
    tables.change(db, "UPDATE embedding_jobs SET suspect = true, deferred_since = now()")

    retry(db, run.claim.job_id)

    job = tables.job(db, run.claim.job_id)
    assert (job.status, job.retry_count, job.next_retry_at) == ("PENDING", job.max_retry_count, None)
    assert (job.error_code, job.error_message, job.failed_at, job.suspect) == (None, None, None, False)
    assert (job.deferred_since, job.claim_token, job.locked_by_worker_id) == (None, None, None)
    assert tables.version(db, run.claim.job_id).status == resume
    assert tables.document(db, run.claim.job_id).status == "INDEXING"
    row = tables.fetch(db, "SELECT * FROM indexing_events ORDER BY id")[-1]
    assert (row.event_type, row.message, row.metadata["by"]) == ("MANUAL_RETRY", "fixed", "ann")
    factories.advance(db, factories.start_next(db), Stage.COMPLETED)
    assert tables.job(db, run.claim.job_id).status == "INDEXED"


def test_a_manual_retry_is_one_execution_and_no_more(db: Database) -> None:
    run = failed(db)
    retry(db, run.claim.job_id)
    report = fail.Report(FailureType.WORKER_INTERNAL_ERROR, "it broke")
    assert not fail.fail(db, factories.start_next(db), report, policy=POLICY).retried
    retry(db, run.claim.job_id)
    assert [a.attempt_no for a in tables.attempts(db, run.claim.job_id)] == [1, 2]


def test_retrying_a_newer_version_leaves_the_document_indexed(db: Database) -> None:
    factories.index(db, "a", "old")
    run = failed(db)
    retry(db, run.claim.job_id)
    assert tables.document(db, run.claim.job_id).status == "INDEXED"


@pytest.mark.parametrize(
    "obstacle", ["pending", "processing", "indexed", "canceled", "newer", "deleted", "model", "version"]
)
def test_a_job_that_can_not_run_again_is_not_retried(db: Database, obstacle: str) -> None:
    if obstacle in {"pending", "processing", "indexed", "canceled"}:
        run = factories.run(db, Stage.VECTORS_STORED)
        if obstacle == "pending":
            release.release(db, run.claim, reason="shutdown")
        elif obstacle == "indexed":
            factories.advance(db, run.own, Stage.COMPLETED)
        elif obstacle == "canceled":
            cancel(db, run.claim.job_id)
    else:
        run = failed(db)
    if obstacle == "newer":
        factories.register(db, "a", "newer")
    elif obstacle == "deleted":
        documents.delete(db, run.document.document_id, reason="", by="ann")
    elif obstacle == "model":
        models.add(db, provider="builtin", name="next", version="1", dimension=8, config={})
        models.activate(db, "next")
    elif obstacle == "version":
        tables.change(db, "UPDATE document_versions SET status = 'CANCELED'")
    before = tables.dump(db)

    with pytest.raises(RetryNotAllowed):
        retry(db, run.claim.job_id)

    assert tables.dump(db) == before


def ask_twice(
    db: Database, other: Database, change: Callable[..., None], job_id: JobId
) -> tuple[tables.Dump, tables.Dump]:
    """Ask for a change, let who asked die before the answer is noted, and ask again: return both states."""
    asked = partial(change, job_id=job_id, reason="annotated", by="operator", request="uid/7")
    asked(db)
    before = tables.dump(db)
    asked(other)
    return before, tables.dump(db)


def test_a_retry_that_is_asked_for_again_after_a_crash_is_done_once(
    db: Database, database_settings: DatabaseSettings
) -> None:
    run = failed(db)
    with races.connected(database_settings) as other:
        before, after = ask_twice(db, other, control.retry, run.claim.job_id)
        assert after == before
        assert tables.events(db, run.claim.job_id).count("MANUAL_RETRY") == 1
        fail.fail(db, factories.start_next(db), CONTENT, policy=POLICY)

        control.retry(other, run.claim.job_id, reason="annotated", by="operator", request="uid/7")
        assert tables.job(db, run.claim.job_id).status == "FAILED", "whatever the job is now"
        control.retry(other, run.claim.job_id, reason="annotated", by="operator", request="uid/8")
        assert tables.job(db, run.claim.job_id).status == "PENDING", "another question"


def test_a_cancellation_that_is_asked_for_again_after_a_crash_is_done_once(
    db: Database, database_settings: DatabaseSettings
) -> None:
    job_id = factories.register(db).job_id
    assert job_id is not None
    with races.connected(database_settings) as other:
        before, after = ask_twice(db, other, control.cancel, job_id)
    assert after == before
    with pytest.raises(CancelNotAllowed):
        control.cancel(db, job_id, reason="annotated", by="operator", request="uid/8")


def test_the_same_question_asked_by_two_at_once_is_answered_once(
    db: Database, database_settings: DatabaseSettings
) -> None:
    run = failed(db)
    ask = partial(control.retry, job_id=run.claim.job_id, reason="", by="operator", request="uid/7")
    with races.connected(database_settings) as other:
        assert races.together([partial(ask, db), partial(ask, other)]) == [None, None]
    assert tables.events(db, run.claim.job_id).count("MANUAL_RETRY") == 1


def test_a_question_is_answered_by_its_own_kind_of_change_and_for_its_own_job_only(db: Database) -> None:
    first, second = failed(db), failed(db, name="b")
    control.retry(db, first.claim.job_id, reason="", by="operator", request="uid/7")

    control.cancel(db, first.claim.job_id, reason="", by="operator", request="uid/7")
    control.retry(db, second.claim.job_id, reason="", by="operator", request="uid/7")

    assert tables.job(db, first.claim.job_id).status == "CANCELED"
    assert tables.job(db, second.claim.job_id).status == "PENDING"


def test_a_change_without_a_named_question_is_made_as_often_as_it_is_asked_for(db: Database) -> None:
    run = failed(db)
    for _ in range(2):
        retry(db, run.claim.job_id)
        fail.fail(db, factories.start_next(db), CONTENT, policy=POLICY)
    rows = tables.fetch(db, "SELECT metadata FROM indexing_events WHERE event_type = 'MANUAL_RETRY'")
    assert [row.metadata for row in rows] == [{"by": "ann"}] * 2


def test_an_unknown_job_is_not_retried(db: Database) -> None:
    with pytest.raises(JobNotFound):
        retry(db, JobId(1))
