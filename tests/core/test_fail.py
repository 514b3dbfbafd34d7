"""Recording failures: the type decides what follows, and the same report is answered for ever."""

import uuid
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from docgrid_core.database import Database
from docgrid_core.errors import (
    AttemptAlreadyEnded,
    BadParameter,
    FailureInconsistent,
    JobNotProcessing,
    JobOwnershipLost,
)
from docgrid_core.jobs import AttemptStatus, FailureType
from docgrid_core.records import ClaimToken, EmbeddingModel, FailureOutcome
from docgrid_core.retry import CRASHES, RETRIED, RetryPolicy
from docgrid_core.store import claim, control, documents, fail, recovery, search
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Execution, Stage
from support import races, tables

POLICY = RetryPolicy()
EXACT = RetryPolicy(initial_delay=timedelta(seconds=10), max_delay=timedelta(minutes=5), jitter=0)
BROKEN = fail.Report(FailureType.WORKER_INTERNAL_ERROR, "it broke")
CONTENT = fail.Report(FailureType.DOCUMENT_CONTENT_INVALID, "no text in it", "DOCUMENT-PARSING-002")


def again(db: Database, run: Execution) -> Execution:
    """Let the delayed job of `run` be claimed and started again."""
    tables.come_due(db)
    claim.promote(db)
    return factories.run(db, document=run.document, worker=run.worker)


def exhausted(db: Database, stage: Stage = Stage.STARTED) -> Execution:
    """Return an execution of a job that has no retry left."""
    run = factories.run(db, stage)
    tables.change(db, "UPDATE embedding_jobs SET retry_count = max_retry_count")
    return run


@pytest.mark.parametrize("failure", sorted(set(FailureType) - CRASHES))
def test_the_failure_type_alone_decides_whether_the_job_runs_again(
    db: Database, failure: FailureType
) -> None:
    run = factories.run(db)

    outcome = fail.fail(db, run.own, fail.Report(failure, "said so"), policy=POLICY)

    job = tables.job(db, run.claim.job_id)
    retried = failure in RETRIED
    assert (outcome.retried, job.status) == (retried, "PENDING" if retried else "FAILED")
    assert (job.error_code, job.error_message) == (failure.value, "said so")
    (attempt,) = tables.attempts(db, run.claim.job_id)
    assert (attempt.status, attempt.failure_type, attempt.retried) == ("FAILED", failure.value, retried)
    assert (attempt.error_code, attempt.error_message) == (failure.value, "said so")
    assert attempt.next_retry_at == job.next_retry_at == outcome.next_retry_at


@pytest.mark.parametrize("failure", sorted(CRASHES))
def test_a_crash_is_decided_by_recovery_and_taken_from_no_caller(db: Database, failure: FailureType) -> None:
    run = factories.run(db)
    before = tables.dump(db)
    with pytest.raises(BadParameter):
        fail.fail(db, run.own, fail.Report(failure, "crashed"), policy=POLICY)
    assert tables.dump(db) == before


def test_each_retry_waits_longer_and_the_last_one_is_final(db: Database) -> None:
    run = factories.run(db)
    waits = []
    for _ in range(3):
        outcome = fail.fail(db, run.own, BROKEN, policy=EXACT)
        job = tables.job(db, run.claim.job_id)
        waits.append(job.next_retry_at - job.updated_at)
        assert (outcome.retried, job.status, job.claim_token) == (True, "PENDING", None)
        run = again(db, run)

    final = fail.fail(db, run.own, BROKEN, policy=EXACT)

    assert waits == [timedelta(seconds=seconds) for seconds in (10, 20, 40)]
    assert (final.retried, final.next_retry_at) == (False, None)
    job = tables.job(db, run.claim.job_id)
    assert (job.status, job.retry_count, job.claim_token) == ("FAILED", 3, run.claim.token.value)
    assert [attempt.attempt_no for attempt in tables.attempts(db, run.claim.job_id)] == [1, 2, 3, 4]


def test_a_retry_is_never_earlier_than_the_other_side_asked_for(db: Database) -> None:
    run = factories.run(db)
    report = fail.Report(FailureType.EMBEDDING_PROVIDER_UNAVAILABLE, "429", retry_after=timedelta(hours=2))
    fail.fail(db, run.own, report, policy=POLICY)
    job = tables.job(db, run.claim.job_id)
    assert job.next_retry_at - job.updated_at == timedelta(hours=2)


@pytest.mark.parametrize(
    ("stage", "event", "state"),
    [
        (Stage.STARTED, "PARSE_FAILED", "UPLOADED"),
        (Stage.PARSE_PREPARED, "PARSE_FAILED", "PARSING"),
        (Stage.CHUNKS_STORED, "EMBEDDING_FAILED", "CHUNKED"),
        (Stage.VECTORS_STORED, "EMBEDDING_FAILED", "EMBEDDING"),
    ],
)
def test_a_retry_keeps_the_versions_state_as_its_resume_point(
    db: Database, stage: Stage, event: str, state: str
) -> None:
    run = factories.run(db, stage)
    before = tables.vectors(db, run.claim.job_id)

    fail.fail(db, run.own, BROKEN, policy=POLICY)

    assert tables.version(db, run.claim.job_id).status == state
    assert tables.vectors(db, run.claim.job_id) == before
    assert tables.events(db, run.claim.job_id)[-2:] == [event, "RETRY"]
    factories.advance(db, again(db, run).own, Stage.COMPLETED)
    job = tables.job(db, run.claim.job_id)
    assert (job.status, job.error_code, job.error_message) == ("INDEXED", None, None)


def test_a_final_failure_of_the_only_version_fails_version_and_document(db: Database) -> None:
    run = factories.run(db, Stage.VECTORS_STORED)

    fail.fail(db, run.own, CONTENT, policy=POLICY)

    job_id = run.claim.job_id
    job = tables.job(db, job_id)
    assert (job.status, job.error_code, job.claim_token) == (
        "FAILED",
        "DOCUMENT-PARSING-002",
        run.claim.token.value,
    )
    assert tables.version(db, job_id).status == "FAILED"
    assert tables.document(db, job_id).status == "FAILED"
    assert tables.vectors(db, job_id) == {"STALE": 3}
    assert tables.events(db, job_id)[-2:] == ["EMBEDDING_FAILED", "FAILED"]


def test_a_failed_newer_version_never_hides_the_searchable_one(db: Database, model: EmbeddingModel) -> None:
    factories.index(db, "a", "old")
    run = factories.run(db, Stage.VECTORS_STORED, document=factories.register(db, "a", "new"))

    fail.fail(db, run.own, CONTENT, policy=POLICY)

    assert tables.document(db, run.claim.job_id).status == "INDEXED"
    hits = search.search(db, model, [1.0] * 8)
    assert [hit.version_no for hit in hits] == [1, 1, 1]


def test_the_same_report_again_is_answered_whatever_the_job_is_now(db: Database) -> None:
    run = factories.run(db)
    first = fail.fail(db, run.own, BROKEN, policy=POLICY)
    replays = [fail.fail(db, run.own, BROKEN, policy=POLICY)]
    later = again(db, run)
    replays.append(fail.fail(db, run.own, BROKEN, policy=POLICY))
    factories.advance(db, later.own, Stage.COMPLETED)
    replays.append(fail.fail(db, run.own, BROKEN, policy=POLICY))
    documents.delete(db, run.document.document_id, reason="", by="test")
    before = tables.dump(db)
    replays.append(fail.fail(db, run.own, BROKEN, policy=POLICY))

    assert replays == [first] * 4
    assert tables.dump(db) == before


def test_a_final_report_is_answered_again_too(db: Database) -> None:
    run = exhausted(db)
    first = fail.fail(db, run.own, BROKEN, policy=POLICY)
    assert fail.fail(db, run.own, BROKEN, policy=POLICY) == first
    assert tables.events(db, run.claim.job_id).count("FAILED") == 1


def test_concurrent_reports_spend_one_retry(db: Database) -> None:
    run = factories.run(db)
    outcomes = races.together([partial(fail.fail, db, run.own, BROKEN, policy=POLICY)] * 4)
    assert isinstance(outcomes[0], FailureOutcome)
    assert outcomes == [outcomes[0]] * 4
    assert tables.job(db, run.claim.job_id).retry_count == 1


@pytest.mark.parametrize("other", [CONTENT, replace(BROKEN, message="it broke otherwise")])
def test_another_report_of_an_ended_attempt_is_refused(db: Database, other: fail.Report) -> None:
    run = factories.run(db)
    fail.fail(db, run.own, BROKEN, policy=POLICY)
    before = tables.dump(db)
    with pytest.raises(AttemptAlreadyEnded):
        fail.fail(db, run.own, other, policy=POLICY)
    assert tables.dump(db) == before


def test_a_report_of_an_execution_that_recovery_ended_is_refused(db: Database) -> None:
    run = factories.run(db)
    tables.expire_lease(db, run.claim.job_id)
    recovery.recover_batch(db, limit=10, policy=POLICY)
    with pytest.raises(AttemptAlreadyEnded):
        fail.fail(db, run.own, BROKEN, policy=POLICY)


def test_a_report_is_answered_again_to_the_claim_that_made_it_alone(db: Database) -> None:
    run = factories.run(db)
    fail.fail(db, run.own, BROKEN, policy=POLICY)
    stranger = factories.register_worker(db)
    for own in (
        replace(run.own, token=ClaimToken(uuid.uuid4())),
        replace(run.own, worker_id=stranger.id),
    ):
        with pytest.raises(JobNotProcessing):
            fail.fail(db, own, BROKEN, policy=POLICY)
    later = again(db, run)
    with pytest.raises(JobOwnershipLost):
        fail.fail(db, replace(later.own, token=run.own.token), BROKEN, policy=POLICY)


def test_a_report_after_a_release_is_refused(db: Database) -> None:
    run = factories.run(db)
    control.cancel(db, run.claim.job_id, reason="test", by="test")
    with pytest.raises(JobNotProcessing):
        fail.fail(db, run.own, BROKEN, policy=POLICY)


def test_a_message_is_cut_and_cleaned_and_still_replays(db: Database) -> None:
    run = factories.run(db)
    report = fail.Report(FailureType.WORKER_INTERNAL_ERROR, "a\0\ud800" + "b" * 3000)
    first = fail.fail(db, run.own, report, policy=POLICY)
    assert tables.job(db, run.claim.job_id).error_message == "a�" + "b" * 1998
    assert fail.fail(db, run.own, report, policy=POLICY) == first


@pytest.mark.parametrize("status", ["FAILED", "CANCELED"])
def test_a_failure_of_a_version_that_has_ended_is_a_fault_that_ends_as_inconsistent(
    db: Database, status: str
) -> None:
    run = factories.run(db)
    tables.change(db, "UPDATE document_versions SET status = :status", status=status)
    before = tables.dump(db)
    with pytest.raises(FailureInconsistent):
        fail.fail(db, run.own, BROKEN, policy=POLICY)
    assert tables.dump(db) == before

    report = fail.Report(FailureType.INDEXING_STATE_INCONSISTENT, "rows disagree")
    outcome = fail.fail(db, run.own, report, policy=POLICY)

    assert (outcome.attempt_status, outcome.retried) == (AttemptStatus.FAILED, False)
    assert tables.job(db, run.claim.job_id).status == "FAILED"
    assert tables.version(db, run.claim.job_id).status == status


def test_a_failed_job_holds_no_lease_for_recovery_to_find(db: Database) -> None:
    run = exhausted(db)
    fail.fail(db, run.own, BROKEN, policy=POLICY)
    tables.change(
        db, "UPDATE embedding_jobs SET lock_expires_at = now(), locked_at = now() - :lease", lease=LEASE
    )
    assert recovery.recover_batch(db, limit=10, policy=POLICY) == recovery.RecoveryReport()
