"""What people read: filters, order, pages, counts that stop, and that no answer holds a token."""

from dataclasses import asdict
from datetime import timedelta

import pytest

from docgrid_core.database import Database
from docgrid_core.errors import BadParameter, DocumentNotFound, JobNotFound
from docgrid_core.jobs import (
    DocumentId,
    EventType,
    FailureType,
    JobId,
    JobStatus,
    StopReason,
    VersionStatus,
    WorkerStatus,
)
from docgrid_core.records import EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import attempts, control, documents, fail, models, queries, recovery, workers
from docgrid_core.store.fail import Report
from docgrid_core.store.queries import COUNT_LIMIT, Count, JobFilter
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Stage
from support import tables

BROKEN = Report(FailureType.DOCUMENT_CONTENT_INVALID, "not a document", "DOCUMENT-PARSING-003")
AWAY = Report(FailureType.STORAGE_UNAVAILABLE, "away")


def ids(db: Database, wanted: JobFilter) -> list[JobId]:
    return [job.id for job in queries.list_jobs(db, wanted).items]


def failed(db: Database, report: Report = BROKEN) -> JobId:
    execution = factories.run(db)
    fail.fail(db, execution.own, report, policy=RetryPolicy())
    return execution.claim.job_id


def one_of_each(db: Database) -> dict[JobStatus, JobId]:
    """Leave one job in each state."""
    jobs = {
        JobStatus.INDEXED: factories.run(db, Stage.COMPLETED).claim.job_id,
        JobStatus.FAILED: failed(db),
        JobStatus.PROCESSING: factories.run(db).claim.job_id,
    }
    canceled = factories.register(db).job_id
    assert canceled is not None
    control.cancel(db, canceled, reason="", by="test")
    pending = factories.register(db).job_id
    assert pending is not None
    return {**jobs, JobStatus.CANCELED: canceled, JobStatus.PENDING: pending}


def test_all_jobs_come_newest_first(db: Database) -> None:
    jobs = one_of_each(db)

    page = queries.list_jobs(db, JobFilter())

    assert [job.id for job in page.items] == sorted(jobs.values(), reverse=True)
    assert (page.page, page.size, page.total) == (0, 50, Count(5))


@pytest.mark.parametrize("status", JobStatus)
def test_jobs_of_one_state_are_found(db: Database, status: JobStatus) -> None:
    jobs = one_of_each(db)

    assert ids(db, JobFilter(status=status)) == [jobs[status]]


@pytest.mark.parametrize("status", JobStatus)
def test_jobs_of_one_state_come_newest_first(db: Database, status: JobStatus) -> None:
    first, second = one_of_each(db)[status], one_of_each_but_claimed(db)[status]

    assert ids(db, JobFilter(status=status)) == [second, first]


def one_of_each_but_claimed(db: Database) -> dict[JobStatus, JobId]:
    """Leave another job in each state; the pending one of before has to be out of the way of the claims."""
    tables.change(db, "UPDATE embedding_jobs SET next_retry_at = now() WHERE status = 'PENDING'")
    return one_of_each(db)


def test_the_jobs_of_a_document_are_found_over_all_its_versions(db: Database) -> None:
    first = factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper"))
    second = factories.register(db, "paper", "changed")
    factories.register(db)

    assert ids(db, JobFilter(document_id=first.document.document_id)) == [second.job_id, first.claim.job_id]
    assert ids(db, JobFilter(status=JobStatus.PENDING, document_id=first.document.document_id)) == [
        second.job_id
    ]


def test_the_jobs_of_a_worker_are_those_that_it_holds_or_ended(db: Database) -> None:
    worker = factories.register_worker(db)
    done = factories.run(db, Stage.COMPLETED, worker=worker).claim.job_id
    running = factories.run(db, worker=worker).claim.job_id
    factories.run(db)

    assert ids(db, JobFilter(worker_id=worker.id)) == [running, done]
    assert ids(db, JobFilter(worker_id=worker.id, status=JobStatus.INDEXED)) == [done]


def test_a_failure_type_finds_the_jobs_that_ended_by_it(db: Database) -> None:
    broken, _delayed = failed(db), failed(db, AWAY)

    assert ids(db, JobFilter(failure_type=FailureType.DOCUMENT_CONTENT_INVALID)) == [broken]
    assert ids(db, JobFilter(failure_type=FailureType.STORAGE_UNAVAILABLE)) == []
    assert (
        ids(db, JobFilter(failure_type=FailureType.DOCUMENT_CONTENT_INVALID, status=JobStatus.PENDING)) == []
    )


def test_the_last_failure_of_a_job_is_the_one_that_counts(db: Database) -> None:
    job = failed(db)
    control.retry(db, job, reason="", by="test")
    worker = factories.register_worker(db)
    claimed = factories.claim_one(db, worker)
    own = attempts.start(db, claimed).ownership
    fail.fail(db, own, Report(FailureType.EMBEDDING_REQUEST_INVALID, "no"), policy=RetryPolicy())

    assert ids(db, JobFilter(failure_type=FailureType.DOCUMENT_CONTENT_INVALID)) == []
    assert ids(db, JobFilter(failure_type=FailureType.EMBEDDING_REQUEST_INVALID)) == [job]


def test_a_job_in_quarantine_without_an_attempt_is_found_by_its_code(db: Database) -> None:
    factories.register(db)
    claimed = factories.claim_one(db, factories.register_worker(db))
    tables.expire_lease(db, claimed.job_id)
    recovery.quarantine_one(db, claimed.job_id)

    assert ids(db, JobFilter(failure_type=FailureType.INDEXING_STATE_INCONSISTENT)) == [claimed.job_id]


def test_pages_follow_each_other_without_a_gap(db: Database) -> None:
    jobs = [factories.register(db).job_id for _ in range(5)]

    pages = [
        queries.list_jobs(db, JobFilter(status=JobStatus.PENDING), page=page, size=2) for page in range(4)
    ]

    assert [[job.id for job in page.items] for page in pages] == [jobs[:2:-1], jobs[2:0:-1], jobs[:1], []]
    assert {page.total for page in pages} == {Count(5)}


@pytest.mark.parametrize(("page", "size"), [(-1, 10), (0, 0), (0, 501), (1000, 10)])
def test_an_impossible_page_is_refused(db: Database, page: int, size: int) -> None:
    with pytest.raises(BadParameter):
        queries.list_jobs(db, JobFilter(), page=page, size=size)
    with pytest.raises(BadParameter):
        queries.list_documents(db, page=page, size=size)


def test_counts_stop_at_10000(db: Database, model: EmbeddingModel) -> None:
    factories.register(db)
    tables.change(
        db,
        """
        WITH version AS (
          INSERT INTO document_versions
            (document_id, version_no, file_object_id, original_filename, content_type, file_hash, status)
          SELECT document_id, n, file_object_id, 'f', 't', file_hash, 'CANCELED'
          FROM document_versions, generate_series(2, :last) AS n RETURNING id
        )
        INSERT INTO embedding_jobs (document_version_id, embedding_model_id, status)
        SELECT id, :model_id, 'PENDING' FROM version
        """,
        last=COUNT_LIMIT + 2,
        model_id=model.id,
    )

    assert queries.list_jobs(db, JobFilter(), size=1).total == Count(COUNT_LIMIT, is_capped=True)
    assert str(queries.list_jobs(db, JobFilter(status=JobStatus.PENDING), size=1).total) == "10000+"
    (depth,) = queries.queue_depth(db)
    assert (str(depth.ready), str(depth.delayed)) == ("10000+", "0")
    assert len(queries.job_ids(db, JobFilter())) == COUNT_LIMIT


def test_ids_alone_are_for_working_through_them(db: Database) -> None:
    jobs = [factories.register(db).job_id for _ in range(3)]

    assert queries.job_ids(db, JobFilter(status=JobStatus.PENDING), limit=2) == jobs[:0:-1]


def test_a_job_is_shown_with_document_model_worker_attempts_and_events(
    db: Database, model: EmbeddingModel
) -> None:
    document = factories.register(db, "paper")
    execution = factories.run(db, Stage.COMPLETED, document=document)

    detail = queries.show_job(db, execution.claim.job_id)

    job = detail.job
    assert (job.status, job.title, job.source_uri, job.version_no, job.version_status, job.model) == (
        JobStatus.INDEXED,
        "paper",
        "s3://bucket/paper.txt",
        1,
        VersionStatus.INDEXED,
        model.name,
    )
    assert (job.worker_id, job.worker_name, job.failure_type) == (execution.worker.id, "worker", None)
    (attempt,) = detail.attempts
    assert (attempt.attempt_no, attempt.worker_id, attempt.status) == (1, execution.worker.id, "SUCCESS")
    assert [event.event_type for event in detail.events] == [
        EventType.JOB_CREATED,
        EventType.LOCKED,
        EventType.PARSE_STARTED,
        EventType.CHUNKED,
        EventType.EMBEDDING_STARTED,
        EventType.INDEXED,
    ]
    assert [event.from_status for event in detail.events][:2] == [None, JobStatus.PENDING]


def test_a_failed_job_is_shown_with_its_reason(db: Database) -> None:
    detail = queries.show_job(db, failed(db))

    assert (detail.job.failure_type, detail.job.error_code, detail.job.error_message) == (
        FailureType.DOCUMENT_CONTENT_INVALID,
        "DOCUMENT-PARSING-003",
        "not a document",
    )
    assert detail.attempts[0].failure_type is FailureType.DOCUMENT_CONTENT_INVALID
    assert detail.attempts[0].retried is False


def test_an_unknown_job_is_not_found(db: Database) -> None:
    with pytest.raises(JobNotFound):
        queries.show_job(db, JobId(7))


def test_no_answer_holds_a_token_or_a_chunk(db: Database) -> None:
    execution = factories.run(db, Stage.COMPLETED)
    running = factories.run(db)
    canaries = [str(execution.own.token.value), str(running.own.token.value), "chunk 0"]

    answers = [
        *(asdict(queries.show_job(db, job)) for job in (execution.claim.job_id, running.claim.job_id)),
        asdict(queries.list_jobs(db, JobFilter())),
        asdict(queries.list_documents(db)),
        asdict(queries.show_document(db, execution.document.document_id)),
        *map(asdict, queries.list_workers(db)),
        *map(asdict, queries.queue_depth(db)),
    ]

    assert not [canary for canary in canaries if canary in repr(answers)]


def test_documents_come_by_source_uri_without_the_deleted_ones(db: Database) -> None:
    second, first = factories.register(db, "b"), factories.register(db, "a")
    documents.delete(db, factories.register(db, "0").document_id, reason="", by="test")

    page = queries.list_documents(db)

    assert [document.id for document in page.items] == [first.document_id, second.document_id]
    assert page.total == Count(2)
    assert [document.title for document in queries.list_documents(db, page=1, size=1).items] == ["b"]


def test_a_document_is_shown_with_its_versions_and_what_search_sees(db: Database) -> None:
    execution = factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper"))
    newer = factories.register(db, "paper", "changed")

    detail = queries.show_document(db, newer.document_id)

    assert (detail.document.newest_version_no, detail.document.newest_version_status) == (
        2,
        VersionStatus.UPLOADED,
    )
    assert (detail.document.current_version_no, detail.chunk_count) == (1, 3)
    assert [(version.version_no, version.is_current, version.job_id) for version in detail.versions] == [
        (2, False, newer.job_id),
        (1, True, execution.claim.job_id),
    ]
    assert detail.versions[1].file_size == len("content")


def test_a_document_that_was_never_indexed_has_no_current_version(db: Database) -> None:
    detail = queries.show_document(db, factories.register(db).document_id)

    assert (detail.document.current_version_no, detail.document.indexed_at, detail.chunk_count) == (
        None,
        None,
        0,
    )
    assert [version.is_current for version in detail.versions] == [False]


def test_a_document_whose_job_was_pruned_is_shown_without_it(db: Database) -> None:
    document = factories.run(db, Stage.COMPLETED).document
    for table in ("indexing_events", "embedding_job_attempts", "embedding_jobs"):
        tables.change(db, f"DELETE FROM {table}")  # noqa: S608

    (version,) = queries.show_document(db, document.document_id).versions

    assert (version.job_id, version.job_status) == (None, None)


def test_an_unknown_or_deleted_document_is_not_found(db: Database) -> None:
    deleted = factories.register(db).document_id
    documents.delete(db, deleted, reason="", by="test")

    for document_id in (deleted, DocumentId(7)):
        with pytest.raises(DocumentNotFound):
            queries.show_document(db, document_id)


def test_workers_are_shown_as_what_they_count(db: Database) -> None:
    alive = factories.register_worker(db, dead_threshold=timedelta(hours=2))
    silent = factories.register_worker(db)
    ended = factories.register_worker(db, pod_uid="pod")
    workers.mark_pod_ended(db, pod_uid="pod", reason=StopReason.OOM_KILLED)
    workers.heartbeat(db, alive, running_jobs=2)
    for worker in (alive, silent):
        tables.silence(db, worker.id)

    found = {worker.id: worker for worker in queries.list_workers(db)}

    assert list(found) == [silent.id, alive.id, ended.id]
    assert {worker.id: worker.effective_status for worker in found.values()} == {
        silent.id: WorkerStatus.DEAD,
        alive.id: WorkerStatus.ACTIVE,
        ended.id: WorkerStatus.DEAD,
    }
    assert (found[silent.id].status, found[silent.id].stop_reason) == (WorkerStatus.ACTIVE, None)
    assert found[ended.id].stop_reason is StopReason.OOM_KILLED
    age = found[alive.id].since_heartbeat
    assert age is not None
    assert timedelta(hours=1) <= age < timedelta(hours=2)
    assert found[alive.id].running_jobs == 2


def test_the_queue_is_told_apart_by_model(db: Database, model: EmbeddingModel) -> None:
    one_of_each(db)
    failed_twice = factories.register(db)
    tables.change(
        db, "UPDATE embedding_jobs SET next_retry_at = now() WHERE id = :id", id=failed_twice.job_id
    )
    next_to_run = factories.register(db, priority=5)
    models.add(db, provider="builtin", name="other", version="1", dimension=8, config={})

    depth, other = queries.queue_depth(db)

    assert (depth.model_id, depth.model, other.model) == (model.id, model.name, "other")
    assert [str(count) for count in (depth.ready, depth.delayed, depth.processing, depth.failed)] == [
        "2",
        "1",
        "1",
        "1",
    ]
    assert depth.oldest_ready_at == tables.job(db, next_to_run.job_id).created_at
    assert (other.ready, other.failed, other.oldest_ready_at, other.indexed_per_minute) == (
        Count(0),
        Count(0),
        None,
        0.0,
    )


def test_the_rate_is_that_of_the_last_minutes(db: Database) -> None:
    for _ in range(3):
        factories.run(db, Stage.COMPLETED)
    tables.change(
        db,
        "UPDATE embedding_jobs SET completed_at = completed_at - interval '6 minutes'"
        " WHERE id = (SELECT min(id) FROM embedding_jobs)",
    )

    (depth,) = queries.queue_depth(db)

    assert depth.indexed_per_minute == 0.4  # two in five minutes


def test_the_rate_of_a_fast_queue_is_that_of_the_time_which_was_counted(
    db: Database, model: EmbeddingModel
) -> None:
    """Of 20,000 jobs that took 100 seconds, the newest half is counted: 200 a second all the same."""
    factories.run(db, Stage.COMPLETED)
    tables.change(
        db,
        """
        INSERT INTO embedding_jobs (document_version_id, embedding_model_id, status, locked_by_worker_id, claim_token,
                                    completed_at)
        SELECT document_version_id, embedding_model_id, 'INDEXED', locked_by_worker_id, gen_random_uuid(),
               clock_timestamp() - n * interval '5 milliseconds'
        FROM embedding_jobs, generate_series(1, 20000) AS n
        """,
    )

    (depth,) = queries.queue_depth(db)

    assert depth.indexed_per_minute == pytest.approx(12_000, rel=0.05)
