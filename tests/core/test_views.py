"""The window of jobs behind the IndexingJob views: which jobs, in which order, and that they keep still."""

from dataclasses import fields, replace
from datetime import timedelta

import pytest

from docgrid_core.database import Database
from docgrid_core.jobs import FailureType, JobId, JobStatus
from docgrid_core.records import EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import claim, control, fail, leases, models, workers
from docgrid_core.store.queries.views import ViewRow, view_window
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Execution, Stage
from support import tables

POLICY = RetryPolicy(jitter=0)
BROKEN = fail.Report(FailureType.DOCUMENT_CONTENT_INVALID, "not a document", "DOCUMENT-PARSING-003")
AWAY = fail.Report(FailureType.STORAGE_UNAVAILABLE, "away")
A_MINUTE = timedelta(minutes=1)


def shown(db: Database, *, limit: int = 100, keep: tuple[JobId, ...] = ()) -> list[JobId]:
    return [row.job_id for row in view_window(db, limit=limit, keep=keep, linger=A_MINUTE)]


def row_of(db: Database, job_id: JobId | None, *, keep: tuple[JobId, ...] = ()) -> ViewRow:
    (row,) = [row for row in view_window(db, limit=100, keep=keep, linger=A_MINUTE) if row.job_id == job_id]
    return row


def pending(db: Database, *, priority: int = 0) -> JobId:
    job_id = factories.register(db, priority=priority).job_id
    assert job_id is not None
    return job_id


def ended(db: Database, report: fail.Report) -> JobId:
    run = factories.run(db)
    fail.fail(db, run.own, report, policy=POLICY)
    return run.claim.job_id


def canceled(db: Database) -> JobId:
    job_id = pending(db)
    control.cancel(db, job_id, reason="", by="test")
    return job_id


def finish_an_hour_ago(db: Database, job_id: JobId) -> None:
    tables.change(
        db,
        """
        UPDATE embedding_jobs
        SET completed_at = completed_at - interval '1 hour', failed_at = failed_at - interval '1 hour',
            updated_at = updated_at - interval '1 hour'
        WHERE id = :id
        """,
        id=job_id,
    )


def test_what_runs_comes_first_then_failures_then_what_runs_next_then_what_is_done(db: Database) -> None:
    indexed = [factories.run(db, Stage.COMPLETED).claim.job_id for _ in range(2)]
    failed = [ended(db, BROKEN) for _ in range(2)]
    delayed = [ended(db, AWAY) for _ in range(2)]
    running = [factories.run(db).claim.job_id for _ in range(2)]
    canceled(db)
    first, later, urgent = pending(db), pending(db), pending(db, priority=5)
    suspect = pending(db, priority=9)
    tables.change(db, "UPDATE embedding_jobs SET suspect = true WHERE id = :id", id=suspect)

    everything = [*running, *failed[::-1], urgent, first, later, suspect, *delayed, *indexed[::-1]]
    assert shown(db) == everything
    for limit in range(1, len(everything)):
        assert shown(db, limit=limit) == everything[:limit], "the window is cut at its end"


def test_the_jobs_that_run_longest_stay_when_there_is_no_room_for_all(db: Database) -> None:
    running = [factories.run(db) for _ in range(3)]
    leases.renew(db, running[0].worker, [running[0].claim], lease_duration=10 * LEASE)

    assert shown(db, limit=2) == [run.claim.job_id for run in running[:2]]


@pytest.mark.parametrize("kind", ["ready", "delayed"])
def test_the_next_jobs_of_all_models_are_merged_in_the_order_of_the_queue(db: Database, kind: str) -> None:
    other = models.add(db, provider="builtin", name="other", version="1", dimension=8, config={})
    jobs = {priority: pending(db, priority=priority) for priority in (1, 3, 2, 4)}
    tables.change(
        db, "UPDATE embedding_jobs SET embedding_model_id = :other WHERE priority > 2", other=other.id
    )
    if kind == "delayed":
        tables.change(db, "UPDATE embedding_jobs SET next_retry_at = now() - priority * interval '1 s'")

    for limit in range(1, 5):
        assert shown(db, limit=limit) == [jobs[priority] for priority in (4, 3, 2, 1)][:limit]


@pytest.mark.parametrize("end", [JobStatus.INDEXED, JobStatus.FAILED, JobStatus.CANCELED])
def test_a_job_that_was_shown_stays_a_while_after_its_end(db: Database, end: JobStatus) -> None:
    match end:
        case JobStatus.INDEXED:
            job_id = factories.run(db, Stage.COMPLETED).claim.job_id
        case JobStatus.FAILED:
            job_id = ended(db, BROKEN)
        case _:
            job_id = canceled(db)
    newer = ended(db, BROKEN)
    running, _next = factories.run(db).claim.job_id, pending(db)

    assert shown(db, limit=2) == [running, newer]
    assert shown(db, limit=2, keep=(job_id,)) == [running, job_id]
    assert len(shown(db, keep=(job_id, newer, running))) == len(set(shown(db, keep=(job_id, newer, running))))
    finish_an_hour_ago(db, job_id)
    assert shown(db, limit=2, keep=(job_id,)) == [running, newer]


def test_a_canceled_job_is_shown_only_while_it_lingers(db: Database) -> None:
    job_id = canceled(db)

    assert shown(db) == []
    assert shown(db, keep=(job_id, JobId(99))) == [job_id]


def test_a_job_that_was_shown_and_has_not_ended_has_no_claim_to_stay(db: Database) -> None:
    job_id = ended(db, AWAY)
    running = factories.run(db).claim.job_id
    assert shown(db, limit=1, keep=(job_id,)) == [running]


def in_a_pod(db: Database) -> Execution:
    identity = replace(factories.identity(), pod_name="pool-abc", indexing_worker="pool")
    return factories.run(db, worker=workers.register(db, identity))


def test_a_running_job_is_shown_with_its_document_and_model(db: Database, model: EmbeddingModel) -> None:
    factories.index(db, "paper")
    document = factories.register(db, "paper", "changed", priority=3)
    factories.run(db, document=document)
    job = tables.job(db, document.job_id)

    assert row_of(db, document.job_id) == ViewRow(
        job_id=JobId(job.id),
        source_uri="s3://bucket/paper.txt",
        title="paper",
        version_no=2,
        model_id=model.id,
        model_name=model.name,
        model_version=model.version,
        priority=3,
        status=JobStatus.PROCESSING,
        attempts=1,
        retry_count=0,
        max_retry_count=3,
        worker="worker",
        indexing_worker=None,
        next_retry_at=None,
        error_code=None,
        error_message=None,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=None,
    )


def test_a_running_job_names_its_pod_and_pool_and_a_waiting_one_nobody(db: Database) -> None:
    run = in_a_pod(db)
    assert (row_of(db, run.claim.job_id).worker, row_of(db, run.claim.job_id).indexing_worker) == (
        "pool-abc",
        "pool",
    )

    fail.fail(db, run.own, AWAY, policy=POLICY)

    row = row_of(db, run.claim.job_id)
    assert (row.status, row.worker, row.indexing_worker) == (JobStatus.PENDING, None, None)
    assert (row.attempts, row.retry_count, row.error_code, row.error_message) == (1, 1, AWAY.code, "away")
    assert row.next_retry_at == tables.job(db, run.claim.job_id).next_retry_at is not None


def test_an_ended_job_says_when_it_ended_and_in_which_pod(db: Database) -> None:
    run = in_a_pod(db)
    fail.fail(db, run.own, BROKEN, policy=POLICY)
    failed = row_of(db, run.claim.job_id)
    assert (failed.finished_at, failed.worker) == (tables.job(db, failed.job_id).failed_at, "pool-abc")
    assert (failed.error_code, failed.error_message) == ("DOCUMENT-PARSING-003", "not a document")

    run = in_a_pod(db)
    factories.advance(db, run.own, Stage.COMPLETED)
    indexed = row_of(db, run.claim.job_id)
    assert (indexed.finished_at, indexed.worker) == (tables.job(db, indexed.job_id).completed_at, "pool-abc")

    job_id = canceled(db)
    gone = row_of(db, job_id, keep=(job_id,))
    assert (gone.finished_at, gone.worker) == (tables.job(db, job_id).updated_at, None)


def test_nothing_in_the_window_changes_by_itself(db: Database) -> None:
    """Leases, heartbeats and promotions come and go: a steady queue writes no view."""
    run = in_a_pod(db)
    pending(db)
    canceled(db)
    before = view_window(db, limit=100)

    leases.renew(db, run.worker, [run.claim], lease_duration=10 * LEASE)
    workers.heartbeat(db, run.worker, running_jobs=3)
    claim.promote(db)

    assert view_window(db, limit=100) == before
    assert not {field.name for field in fields(ViewRow)} & {"updated_at", "lock_expires_at", "claim_token"}


def test_no_row_holds_a_token_and_none_shows_a_title_when_printed(db: Database) -> None:
    run = in_a_pod(db)
    said = repr(view_window(db, limit=100))
    assert str(run.own.token.value) not in said
    assert str(tables.document(db, run.claim.job_id).title) not in said
