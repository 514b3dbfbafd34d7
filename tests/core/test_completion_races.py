"""Completion against everything that may happen at the same time: one outcome, whole."""

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from docgrid_core.database import Database
from docgrid_core.errors import (
    DocGridError,
    JobNotProcessing,
    JobOwnershipLost,
    LeaseExpired,
)
from docgrid_core.jobs import StopReason
from docgrid_core.records import Completion, EmbeddingModel
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import (
    complete,
    control,
    documents,
    embed,
    leases,
    recovery,
    search,
    workers,
)
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Execution, Stage
from support import races, tables


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


def test_two_completions_at_once_are_one(db: Database) -> None:
    run = ready(db)

    outcomes = races.together([partial(complete.complete, db, run.own)] * 4)

    assert isinstance(outcomes[0], Completion)
    assert outcomes == [outcomes[0]] * 4
    assert tables.events(db, run.claim.job_id).count("INDEXED") == 1


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
