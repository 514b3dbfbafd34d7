"""Registering and deleting documents: what the same or other bytes mean, and who may be in the way."""

from dataclasses import replace

import pytest

from docgrid_core.database import Database
from docgrid_core.errors import BadParameter, DocumentNotFound, ModelNotSearchable, VersionInProgress
from docgrid_core.jobs import DocumentId, FailureType
from docgrid_core.records import EmbeddingModel, Registration, RegistrationOutcome
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import control, documents, fail, models, search
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Execution, Stage
from support import tables

POLICY = RetryPolicy()


def register(db: Database, content: str, *, supersede: bool = False, force: bool = False) -> Registration:
    return documents.register(db, factories.source("a", content), supersede=supersede, force=force)


def delete(db: Database, document: Registration) -> None:
    documents.delete(db, document.document_id, reason="", by="test")


def failed(db: Database, failure: FailureType, content: str = "new") -> Execution:
    """Return the execution of a registered document that has failed for good."""
    run = factories.run(db, Stage.CHUNKS_STORED, document=register(db, content))
    tables.change(db, "UPDATE embedding_jobs SET retry_count = max_retry_count WHERE status = 'PROCESSING'")
    fail.fail(db, run.own, fail.Report(failure, "it went wrong", "SOME-CODE"), policy=POLICY)
    return run


def versions(db: Database) -> list[tuple[int, str]]:
    rows = tables.fetch(db, "SELECT version_no, status FROM document_versions ORDER BY version_no")
    return [(row.version_no, row.status) for row in rows]


def test_a_new_document_gets_a_version_a_job_and_one_event(db: Database, model: EmbeddingModel) -> None:
    source = factories.source("a", "new", priority=5)

    answer = documents.register(db, source)

    assert (answer.outcome, answer.version_no, answer.job_status) == ("created", 1, "PENDING")
    job, document = tables.job(db, answer.job_id), tables.document(db, answer.job_id)
    assert (job.status, job.priority, job.retry_count, job.max_retry_count) == ("PENDING", 5, 0, 3)
    assert job.embedding_model_id == model.id
    assert (document.status, document.source_uri, document.title) == ("UPLOADED", source.source_uri, "a")
    assert document.current_version_id == answer.version_id, "its status hides it"
    assert tables.version(db, answer.job_id).status == "UPLOADED"
    assert tables.events(db, answer.job_id) == ["JOB_CREATED"]
    stored = documents.find_source(db, source.source_uri)
    assert stored == source.object
    assert documents.find_source(db, "s3://bucket/unknown") is None


def test_the_same_bytes_in_flight_are_in_progress_and_no_error(db: Database) -> None:
    first = register(db, "new")
    before = tables.dump(db)

    for supersede, force in ((False, False), (True, False), (False, True)):
        again = register(db, "new", supersede=supersede, force=force)
        assert again == replace(first, outcome=RegistrationOutcome.IN_PROGRESS)
    assert tables.dump(db) == before


def test_other_bytes_in_flight_refuse_or_are_superseded(db: Database) -> None:
    run = factories.run(db, Stage.VECTORS_STORED, document=register(db, "old"))
    before = tables.dump(db)
    with pytest.raises(VersionInProgress):
        register(db, "new")
    with pytest.raises(VersionInProgress):
        register(db, "new", force=True)
    assert tables.dump(db) == before

    answer = register(db, "new", supersede=True)

    assert (answer.outcome, answer.version_no) == ("created", 2)
    assert versions(db) == [(1, "CANCELED"), (2, "UPLOADED")]
    old = tables.job(db, run.claim.job_id)
    assert (old.status, old.claim_token) == ("CANCELED", None)
    assert [a.status for a in tables.attempts(db, run.claim.job_id)] == ["RELEASED"]
    assert tables.vectors(db, run.claim.job_id) == {"STALE": 3}
    assert tables.events(db, run.claim.job_id)[-1] == "CANCELED"
    assert tables.document(db, answer.job_id).status == "UPLOADED"


def test_the_bytes_that_are_searchable_already_are_unchanged(db: Database) -> None:
    version_id = factories.index(db, "a", "same")
    before = tables.dump(db)

    answer = register(db, "same")

    assert (answer.outcome, answer.version_id, answer.job_id) == ("unchanged", version_id, None)
    assert tables.dump(db) == before


def test_going_back_to_the_searchable_bytes_gives_up_what_is_in_flight(db: Database) -> None:
    version_id = factories.index(db, "a", "same")
    flight = register(db, "other")
    with pytest.raises(VersionInProgress):
        register(db, "same")

    answer = register(db, "same", supersede=True)

    assert (answer.outcome, answer.version_id) == ("unchanged", version_id)
    assert tables.job(db, flight.job_id).status == "CANCELED"
    assert tables.document(db, flight.job_id).status == "INDEXED"


def test_going_back_to_the_searchable_bytes_after_a_failure_is_unchanged(db: Database) -> None:
    version_id = factories.index(db, "a", "same")
    failed(db, FailureType.DOCUMENT_CONTENT_INVALID)
    assert register(db, "same").version_id == version_id


def test_force_indexes_the_searchable_bytes_again(db: Database) -> None:
    factories.index(db, "a", "same")
    assert register(db, "same", force=True).version_no == 2
    factories.advance(db, factories.start_next(db), Stage.COMPLETED)
    assert versions(db) == [(1, "INDEXED"), (2, "INDEXED")]


@pytest.mark.parametrize(
    "failure",
    [
        FailureType.STORAGE_UNAVAILABLE,
        FailureType.STORAGE_OBJECT_MISSING,
        FailureType.STORAGE_OBJECT_CHANGED,
        FailureType.STORAGE_CONFIGURATION_INVALID,
        FailureType.EMBEDDING_PROVIDER_UNAVAILABLE,
        FailureType.WORKER_INTERNAL_ERROR,
    ],
)
def test_bytes_that_failed_for_infrastructure_are_tried_again(db: Database, failure: FailureType) -> None:
    run = failed(db, failure)

    answer = register(db, "new")

    assert answer == Registration(
        RegistrationOutcome.RETRIED,
        run.document.document_id,
        run.document.version_id,
        1,
        run.claim.job_id,
        tables.job(db, run.claim.job_id).status,
    )
    assert tables.job(db, run.claim.job_id).status == "PENDING"
    assert tables.version(db, run.claim.job_id).status == "CHUNKED"
    assert tables.events(db, run.claim.job_id)[-1] == "MANUAL_RETRY"
    factories.advance(db, factories.start_next(db), Stage.COMPLETED)


@pytest.mark.parametrize(
    "failure",
    [
        FailureType.DOCUMENT_CONTENT_INVALID,
        FailureType.EMBEDDING_REQUEST_INVALID,
        FailureType.EMBEDDING_RESULT_INVALID,
    ],
)
def test_bytes_that_failed_for_themselves_stay_failed_with_their_reason(
    db: Database, failure: FailureType
) -> None:
    run = failed(db, failure)
    before = tables.dump(db)

    answer = register(db, "new")

    assert (answer.outcome, answer.job_id, answer.job_status) == ("failed", run.claim.job_id, "FAILED")
    assert answer.reason == "SOME-CODE: it went wrong"
    assert tables.dump(db) == before
    assert register(db, "new", force=True).version_no == 2, "unless it is asked for by force"


def test_bytes_whose_failed_job_is_pruned_get_a_new_version(db: Database) -> None:
    failed(db, FailureType.WORKER_INTERNAL_ERROR)
    for table in ("indexing_events", "embedding_job_attempts", "embedding_jobs"):
        tables.change(db, f"DELETE FROM {table}")  # noqa: S608

    answer = register(db, "new")

    assert (answer.outcome, answer.version_no) == ("created", 2)
    assert versions(db) == [(1, "FAILED"), (2, "UPLOADED")]


def test_bytes_that_failed_under_a_model_that_is_no_longer_active_get_a_new_version(db: Database) -> None:
    failed(db, FailureType.WORKER_INTERNAL_ERROR)
    models.add(db, provider="builtin", name="next", version="1", dimension=8, config={})
    successor = models.activate(db, "next")

    answer = register(db, "new")

    assert (answer.outcome, answer.version_no) == ("created", 2)
    assert tables.job(db, answer.job_id).embedding_model_id == successor.id


def test_other_bytes_after_a_failure_or_a_cancel_are_a_new_version(db: Database) -> None:
    failed(db, FailureType.DOCUMENT_CONTENT_INVALID, "one")
    second = register(db, "two")
    assert second.job_id is not None
    control.cancel(db, second.job_id, reason="test", by="test")
    assert register(db, "two").version_no == 3, "a canceled version is not taken up again"
    assert versions(db) == [(1, "FAILED"), (2, "CANCELED"), (3, "UPLOADED")]


def test_a_deleted_document_is_gone_at_once_and_its_name_is_free(db: Database, model: EmbeddingModel) -> None:
    factories.index(db, "a", "old")
    run = factories.run(db, Stage.VECTORS_STORED, document=register(db, "new"))
    assert search.search(db, model, [1.0] * 8)

    delete(db, run.document)

    assert search.search(db, model, [1.0] * 8) == []
    document = tables.document(db, run.claim.job_id)
    assert (document.status, document.deleted_at is not None) == ("DELETED", True)
    assert versions(db) == [(1, "INDEXED"), (2, "CANCELED")]
    assert tables.job(db, run.claim.job_id).status == "CANCELED"
    assert [a.status for a in tables.attempts(db, run.claim.job_id)] == ["RELEASED"]
    assert tables.value(db, "SELECT count(*) FROM embeddings WHERE status = 'ACTIVE'") == 0
    assert documents.find_source(db, "s3://bucket/a.txt") is None
    again = register(db, "new")
    assert (again.outcome, again.version_no) == ("created", 1)
    assert again.document_id != run.document.document_id


def test_a_document_can_be_deleted_once(db: Database) -> None:
    document = register(db, "new")
    delete(db, document)
    before = tables.dump(db)
    with pytest.raises(DocumentNotFound):
        delete(db, document)
    with pytest.raises(DocumentNotFound):
        documents.delete(db, DocumentId(document.document_id + 1), reason="", by="test")
    assert tables.dump(db) == before


def test_a_document_without_a_job_can_be_deleted(db: Database) -> None:
    factories.index(db, "a", "same")
    answer = register(db, "same")
    for table in ("indexing_events", "embedding_job_attempts", "embedding_jobs"):
        tables.change(db, f"DELETE FROM {table}")  # noqa: S608
    delete(db, answer)
    assert tables.value(db, "SELECT status FROM documents") == "DELETED"


def test_who_deleted_and_why_is_in_the_event(db: Database) -> None:
    document = register(db, "new")
    documents.delete(db, document.document_id, reason="no longer\0 true", by="ann")
    row = tables.fetch(db, "SELECT message, metadata FROM indexing_events ORDER BY id")[-1]
    assert (row.message, row.metadata["by"]) == ("no longer true", "ann")


@pytest.mark.parametrize(
    "wrong",
    [
        {"source_uri": ""},
        {"source_uri": "x" * 2049},
        {"source_uri": "한" * 700},
        {"source_uri": "a\0b"},
        {"source_uri": "a\ud800"},
        {"priority": documents.MAX_PRIORITY + 1},
        {"priority": -documents.MAX_PRIORITY - 1},
    ],
    ids=["empty", "long", "long in bytes", "NUL", "surrogate", "priority above", "priority below"],
)
def test_a_registration_with_a_bad_value_is_refused(db: Database, wrong: dict[str, object]) -> None:
    before = tables.dump(db)
    with pytest.raises(BadParameter):
        documents.register(db, replace(factories.source(), **wrong))  # type: ignore[arg-type]
    assert tables.dump(db) == before


def test_names_are_cleaned_and_titles_cut(db: Database) -> None:
    source = factories.source()
    dirty = replace(source.object, filename="a\0.txt\ud800", content_type="text/\0plain")
    answer = documents.register(db, replace(source, title="t\0" + "x" * 600, object=dirty))
    assert tables.document(db, answer.job_id).title == "t" + "x" * 499
    version = tables.version(db, answer.job_id)
    assert (version.original_filename, version.content_type) == ("a.txt�", "text/plain")


def test_nothing_is_registered_without_an_active_model(db: Database) -> None:
    tables.change(db, "UPDATE embedding_models SET is_active = false")
    with pytest.raises(ModelNotSearchable):
        register(db, "new")
