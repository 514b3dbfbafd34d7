"""Retention: what goes, when, and what is never touched."""

from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from docgrid_core.database import Database
from docgrid_core.jobs import DocumentId, FailureType, JobId, StopReason
from docgrid_core.records import EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings, MaintenanceSettings
from docgrid_core.store import attempts, control, documents, fail, models, prune, workers
from docgrid_core.store.fail import Report
from docgrid_core.store.prune import PruneReport
from docgrid_core.store.search import search
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Stage
from docgrid_core.testing.invariants import violations
from support import races, tables

SETTINGS = MaintenanceSettings()
AT_ONCE = MaintenanceSettings(
    keep_indexed=timedelta(microseconds=1),
    keep_failed=timedelta(microseconds=1),
    keep_workers=timedelta(microseconds=1),
)
BROKEN = Report(FailureType.DOCUMENT_CONTENT_INVALID, "broken")


def failed(db: Database, upto: Stage = Stage.VECTORS_STORED, *, name: str = "") -> factories.Execution:
    execution = factories.run(db, upto, document=factories.register(db, name))
    fail.fail(db, execution.own, BROKEN, policy=RetryPolicy())
    return execution


def canceled(db: Database) -> JobId:
    job = factories.run(db, Stage.CHUNKS_STORED).claim.job_id
    control.cancel(db, job, reason="", by="test")
    return job


def age(db: Database, job_id: JobId | None, *, by: str) -> None:
    """Let a job have ended that much earlier."""
    tables.change(
        db,
        """
        UPDATE embedding_jobs
        SET completed_at = completed_at - CAST(:by AS interval), failed_at = failed_at - CAST(:by AS interval),
            updated_at = updated_at - CAST(:by AS interval)
        WHERE id = :id
        """,
        by=by,
        id=job_id,
    )


def count(db: Database, table: str) -> int:
    number: int = tables.value(db, f"SELECT count(*) FROM {table}")  # noqa: S608
    return number


def test_an_empty_database_has_nothing_to_prune(db: Database) -> None:
    assert prune.prune(db, AT_ONCE) == PruneReport()


def test_a_job_that_ended_long_ago_goes_whole(db: Database) -> None:
    old, young = factories.run(db, Stage.COMPLETED), factories.run(db, Stage.COMPLETED)
    age(db, old.claim.job_id, by="7 days 1 second")
    age(db, young.claim.job_id, by="6 days 23 hours")

    assert prune.prune(db, SETTINGS) == PruneReport(jobs=1)
    for table, key in (
        ("embedding_jobs", "id"),
        ("embedding_job_attempts", "embedding_job_id"),
        ("indexing_events", "embedding_job_id"),
    ):
        kept = {row[0] for row in tables.fetch(db, f"SELECT {key} FROM {table}")}  # noqa: S608
        assert kept == {young.claim.job_id}


def test_failed_and_canceled_jobs_are_kept_longer(db: Database) -> None:
    jobs = [failed(db).claim.job_id, canceled(db)]
    for job in jobs:
        age(db, job, by="29 days")

    assert prune.prune(db, SETTINGS).jobs == 0
    for job in jobs:
        age(db, job, by="2 days")
    assert prune.prune(db, SETTINGS).jobs == 2


def test_a_live_job_is_never_pruned_however_old_it_is(db: Database) -> None:
    factories.run(db, Stage.VECTORS_STORED)
    factories.register(db)
    tables.change(
        db,
        "UPDATE embedding_jobs SET created_at = created_at - interval '1 year', updated_at = updated_at"
        " - interval '1 year', started_at = started_at - interval '1 year'",
    )
    before = tables.dump(db)

    assert prune.prune(db, AT_ONCE) == PruneReport()
    assert tables.dump(db) == before


def test_what_search_sees_outlives_its_job(db: Database, model: EmbeddingModel) -> None:
    factories.run(db, Stage.COMPLETED)

    assert prune.prune(db, AT_ONCE) == PruneReport(jobs=1)
    assert len(search(db, model, [1.0] * 8)) == 3
    assert violations(db) == []


def test_a_replaced_version_goes_with_its_vectors_and_chunks(db: Database, model: EmbeddingModel) -> None:
    factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper"))
    factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper", "changed"))

    assert prune.prune(db, SETTINGS) == PruneReport(embeddings=3, chunks=3)
    assert {hit.version_no for hit in search(db, model, [1.0] * 8)} == {2}
    assert violations(db) == []


def test_the_current_version_stays_while_a_newer_one_is_in_flight(db: Database) -> None:
    factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper"))
    factories.run(db, Stage.VECTORS_STORED, document=factories.register(db, "paper", "changed"))

    assert prune.prune(db, SETTINGS) == PruneReport()


def test_the_current_version_stays_when_a_newer_one_failed(db: Database, model: EmbeddingModel) -> None:
    factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper"))
    newer = factories.run(db, Stage.VECTORS_STORED, document=factories.register(db, "paper", "changed"))
    fail.fail(db, newer.own, BROKEN, policy=RetryPolicy())

    prune.prune(db, AT_ONCE)
    prune.prune(db, AT_ONCE)

    assert len(search(db, model, [1.0] * 8)) == 3


def test_chunks_go_only_after_the_embeddings_of_every_model(db: Database) -> None:
    factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper"))
    other = models.add(db, provider="builtin", name="other", version="1", dimension=8, config={})
    tables.change(
        db,
        "INSERT INTO embeddings SELECT chunk_id, :id, document_id, document_version_id, vector, vector_hash, 'ACTIVE'"
        " FROM embeddings",
        id=other.id,
    )
    factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper", "changed"))

    assert prune.prune(db, SETTINGS) == PruneReport(embeddings=6, chunks=3)


def test_a_failed_version_keeps_its_chunks_as_long_as_its_job_can_be_retried(db: Database) -> None:
    execution = failed(db)

    assert prune.prune(db, SETTINGS) == PruneReport(embeddings=3)

    control.retry(db, execution.claim.job_id, reason="", by="test")
    own = attempts.start(db, factories.claim_one(db, execution.worker)).ownership
    factories.advance(db, own, Stage.COMPLETED)
    assert violations(db) == []


def test_a_failed_version_goes_with_its_job(db: Database) -> None:
    failed(db)

    assert prune.prune(db, AT_ONCE) == PruneReport(jobs=1, embeddings=3, chunks=3)


def test_a_failed_version_that_is_not_the_newest_goes_before_its_job(db: Database) -> None:
    failed(db, name="paper")
    factories.register(db, "paper", "changed")

    assert prune.prune(db, SETTINGS) == PruneReport(embeddings=3, chunks=3)


def test_a_canceled_version_goes(db: Database) -> None:
    canceled(db)

    assert prune.prune(db, SETTINGS) == PruneReport(chunks=3)


def test_a_deleted_document_goes_but_for_its_rows_of_record(db: Database) -> None:
    execution = factories.run(db, Stage.COMPLETED)
    documents.delete(db, execution.document.document_id, reason="", by="test")

    assert prune.prune(db, SETTINGS) == PruneReport(embeddings=3, chunks=3)
    assert [count(db, table) for table in ("documents", "document_versions", "embedding_jobs")] == [1, 1, 1]


def test_an_ended_worker_goes_when_nothing_refers_to_it_any_more(db: Database) -> None:
    for pod in ("used", "unused", "young"):
        worker = factories.register_worker(db, pod_uid=pod)
        if pod == "used":
            factories.run(db, Stage.COMPLETED, worker=worker)
        workers.mark_pod_ended(db, pod_uid=pod, reason=StopReason.STOPPED)
    factories.register_worker(db, pod_uid="live")
    tables.change(
        db,
        "UPDATE worker_nodes SET stopped_at = stopped_at - interval '8 days', started_at = started_at"
        " - interval '8 days', last_heartbeat_at = last_heartbeat_at - interval '8 days' WHERE pod_uid <> 'young'",
    )

    assert prune.prune(db, SETTINGS) == PruneReport(workers=1)
    left = {row[0] for row in tables.fetch(db, "SELECT pod_uid FROM worker_nodes")}
    assert left == {"used", "young", "live"}
    assert prune.prune(db, AT_ONCE).workers == 2


def test_more_rows_than_fit_into_a_batch_go_in_several(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune, "BATCH", 2)
    monkeypatch.setattr(prune, "VERSION_WINDOW", 2)
    for name in "abc":
        factories.run(db, Stage.COMPLETED, document=factories.register(db, name))
        factories.run(db, Stage.COMPLETED, document=factories.register(db, name, "changed"))

    reports = list(prune.batches(db, AT_ONCE))

    assert sum(reports, start=PruneReport()) == PruneReport(jobs=6, embeddings=9, chunks=9)
    assert max(report.jobs + report.embeddings + report.chunks for report in reports) == 2
    assert violations(db) == []


def test_pruning_waits_for_no_lock_and_takes_the_rest_later(
    db: Database, database_settings: DatabaseSettings, session: psycopg.Connection
) -> None:
    held, _free = failed(db), failed(db)
    session.execute("SELECT FROM embedding_jobs WHERE id = %s FOR NO KEY UPDATE", [held.claim.job_id])
    session.execute(
        "SELECT FROM embeddings WHERE document_version_id = %s FOR UPDATE", [held.document.version_id]
    )
    with races.connected(database_settings, lock_timeout=timedelta(milliseconds=1)) as other:
        assert prune.prune(other, AT_ONCE) == PruneReport(jobs=1, embeddings=3, chunks=3)
    session.rollback()
    assert tables.job(db, held.claim.job_id).status == "FAILED"

    assert prune.prune(db, AT_ONCE) == PruneReport(jobs=1, embeddings=3, chunks=3)


def test_several_prune_at_once_and_delete_everything_once(
    db: Database, database_settings: DatabaseSettings
) -> None:
    for name in "abcd":
        factories.run(db, Stage.COMPLETED, document=factories.register(db, name))
        factories.run(db, Stage.COMPLETED, document=factories.register(db, name, "changed"))

    outcomes = races.together([lambda: prune.prune(db, AT_ONCE)] * 3)

    assert races.faults(outcomes) == []
    total = sum((report for report in outcomes if isinstance(report, PruneReport)), start=PruneReport())
    assert total + prune.prune(db, AT_ONCE) == PruneReport(jobs=8, embeddings=12, chunks=12)
    assert violations(db) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda db, _document_id: factories.register(db, "paper", "changed"),
        lambda db, document_id: documents.delete(db, document_id, reason="", by="test"),
    ],
    ids=["register", "delete"],
)
def test_a_document_whose_last_job_is_just_being_pruned_can_be_changed(
    db: Database,
    database_settings: DatabaseSettings,
    session: psycopg.Connection,
    change: Callable[[Database, DocumentId], object],
) -> None:
    document = factories.run(db, Stage.COMPLETED, document=factories.register(db, "paper")).document
    for table in ("indexing_events", "embedding_job_attempts", "embedding_jobs"):
        session.execute(f"DELETE FROM {table}")  # noqa: S608

    with races.connected(database_settings, application_name="caller") as other:
        call = races.Call(lambda: change(other, document.document_id))
        races.wait_until(lambda: races.waits_for_lock(db, "caller"))
        session.commit()
        call.result()

    assert violations(db) == []
