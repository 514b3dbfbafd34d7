"""Embed: prepare, store, their replays, and every answer that must not become vectors."""

import hashlib
import struct
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from docgrid_core.database import Database
from docgrid_core.errors import EmbeddingNotAllowed, EmbeddingSetInconsistent, VectorInvalid
from docgrid_core.jobs import FailureType
from docgrid_core.records import EmbeddingModel, EmbedTask
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import control, embed, fail, release
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, STORE_TIMEOUT, Execution, Stage
from support import races, tables


def prepared(db: Database, run: Execution) -> EmbedTask:
    task = embed.prepare(db, run.own)
    assert task is not None
    return task


def test_preparing_returns_the_chunks_in_order_with_the_jobs_model(
    db: Database, model: EmbeddingModel
) -> None:
    run = factories.run(db, Stage.CHUNKS_STORED)

    task = prepared(db, run)

    assert [(chunk.index, chunk.text) for chunk in task.chunks] == [(n, f"chunk {n}") for n in range(3)]
    assert task.model == model
    assert tables.version(db, run.claim.job_id).status == "EMBEDDING"
    assert tables.events(db, run.claim.job_id)[-1] == "EMBEDDING_STARTED"


def test_preparing_again_resumes_without_a_second_event(db: Database) -> None:
    run = factories.run(db, Stage.EMBED_PREPARED)
    release.release(db, run.claim, reason="shutdown")
    again = factories.run(db, document=run.document)
    before = tables.dump(db)

    assert len(prepared(db, again).chunks) == 3
    assert tables.dump(db) == before


def test_preparing_a_version_that_has_its_vectors_is_a_replay(db: Database) -> None:
    run = factories.run(db, Stage.VECTORS_STORED)
    before = tables.dump(db)
    assert embed.prepare(db, run.own) is None
    assert tables.dump(db) == before


@pytest.mark.parametrize("stage", [Stage.STARTED, Stage.PARSE_PREPARED])
def test_a_version_without_chunks_is_a_fault(db: Database, stage: Stage) -> None:
    with pytest.raises(EmbeddingSetInconsistent):
        embed.prepare(db, factories.run(db, stage).own)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_gap_in_the_stored_chunks_is_a_fault(db: Database, lost: int) -> None:
    """Of three chunks one is missing; the last one's absence shows when the vectors are stored."""
    run = factories.run(db, Stage.EMBED_PREPARED)
    task = prepared(db, run)
    tables.change(db, "DELETE FROM document_chunks WHERE chunk_index = :lost", lost=lost)
    if lost < 2:
        with pytest.raises(EmbeddingSetInconsistent):
            embed.prepare(db, run.own)
    with pytest.raises(EmbeddingSetInconsistent):
        factories.store_vectors(db, run.own, task)
    assert tables.vectors(db, run.claim.job_id) == {}


def test_stored_vectors_are_active_and_hashed_and_the_job_stays_processing(db: Database) -> None:
    run = factories.run(db, Stage.EMBED_PREPARED)
    task = prepared(db, run)
    vectors = factories.vectors(task, seed=3)

    embed.store(db, run.own, task, vectors, lease_duration=2 * LEASE, timeout=STORE_TIMEOUT)

    rows = tables.fetch(db, "SELECT *, vector::text AS shown FROM embeddings ORDER BY chunk_id")
    assert [row.chunk_id for row in rows] == [chunk.id for chunk in task.chunks]
    assert {(row.status, row.document_id, row.document_version_id) for row in rows} == {
        ("ACTIVE", run.document.document_id, run.document.version_id)
    }
    for row, vector in zip(rows, vectors, strict=True):
        assert np.array_equal(np.array(row.shown[1:-1].split(","), dtype=np.float32), vector)
        assert row.vector_hash == hashlib.sha256(struct.pack(f">{len(vector)}f", *vector)).hexdigest()
    row = tables.job(db, run.claim.job_id)
    assert row.status == "PROCESSING"
    assert row.lock_expires_at > run.claim.locked_at + 1.9 * LEASE, "the store renews its own lease"
    assert tables.version(db, run.claim.job_id).status == "EMBEDDING"


def test_storing_again_is_a_replay(db: Database) -> None:
    run = factories.run(db, Stage.EMBED_PREPARED)
    task = prepared(db, run)
    factories.store_vectors(db, run.own, task, seed=1)
    before = tables.dump(db)
    factories.store_vectors(db, run.own, task, seed=2)
    assert tables.dump(db) == before, "the first vectors stay"


def test_two_stores_at_once_leave_one_set(db: Database) -> None:
    run = factories.run(db, Stage.EMBED_PREPARED)
    task = prepared(db, run)

    assert races.together([partial(factories.store_vectors, db, run.own, task)] * 3) == [None] * 3
    assert tables.vectors(db, run.claim.job_id) == {"ACTIVE": 3}


@pytest.mark.parametrize("fault", ["short", "long", "dimension", "nan", "infinite", "zero", "flat"])
def test_a_set_of_vectors_that_is_not_valid_is_refused_whole(db: Database, fault: str) -> None:
    """Cases 25 and 26, the core's part: nothing is stored, nothing is shifted."""
    run = factories.run(db, Stage.EMBED_PREPARED)
    task = prepared(db, run)
    vectors = factories.vectors(task)
    wrong = {
        "short": vectors[:-1],
        "long": np.vstack([vectors, vectors[:1]]),
        "dimension": vectors[:, :-1],
        "flat": vectors.reshape(-1),
    }
    for name, number in (("nan", np.nan), ("infinite", np.inf), ("zero", 0)):
        wrong[name] = vectors.copy()
        wrong[name][1] = number
    before = tables.dump(db)

    with pytest.raises(VectorInvalid):
        embed.store(db, run.own, task, wrong[fault], lease_duration=LEASE, timeout=STORE_TIMEOUT)

    assert tables.dump(db) == before


@pytest.mark.parametrize("change", ["hash", "order", "another's"])
def test_vectors_of_other_chunks_than_the_stored_ones_are_refused(db: Database, change: str) -> None:
    run = factories.run(db, Stage.EMBED_PREPARED)
    task = prepared(db, run)
    first, second, third = task.chunks
    other = {
        "hash": (replace(first, content_hash=second.content_hash), second, third),
        "order": (replace(first, index=1), replace(second, index=0), third),
        "another's": (replace(first, id=third.id + 1), second, third),
    }[change]

    with pytest.raises(EmbeddingSetInconsistent):
        factories.store_vectors(db, run.own, replace(task, chunks=other))

    assert tables.vectors(db, run.claim.job_id) == {}


def test_storing_before_preparing_is_refused(db: Database) -> None:
    run = factories.run(db, Stage.EMBED_PREPARED)
    task = prepared(db, run)
    tables.change(db, "UPDATE document_versions SET status = 'CHUNKED'")
    with pytest.raises(EmbeddingNotAllowed):
        factories.store_vectors(db, run.own, task)


def test_a_version_in_another_state_is_refused(db: Database) -> None:
    run = factories.run(db, Stage.CHUNKS_STORED)
    tables.change(db, "UPDATE document_versions SET status = 'FAILED'")
    with pytest.raises(EmbeddingNotAllowed):
        embed.prepare(db, run.own)


def test_a_part_of_a_set_is_a_fault(db: Database) -> None:
    run = factories.run(db, Stage.VECTORS_STORED)
    task = EmbedTask((), run.worker.model)
    tables.change(db, "DELETE FROM embeddings WHERE chunk_id = (SELECT min(chunk_id) FROM embeddings)")
    with pytest.raises(EmbeddingSetInconsistent):
        embed.prepare(db, run.own)
    with pytest.raises(EmbeddingSetInconsistent):
        embed.store(
            db, run.own, task, np.zeros((0, 8), np.float32), lease_duration=LEASE, timeout=STORE_TIMEOUT
        )
    assert tables.vectors(db, run.claim.job_id) == {"ACTIVE": 2}


def test_vectors_of_a_version_that_never_began_to_embed_are_a_fault(db: Database) -> None:
    run = factories.run(db, Stage.VECTORS_STORED)
    tables.change(db, "UPDATE document_versions SET status = 'CHUNKED'")
    with pytest.raises(EmbeddingSetInconsistent):
        embed.prepare(db, run.own)


def test_what_a_failed_run_left_stale_gives_way_to_the_whole_new_set(db: Database) -> None:
    run = factories.run(db, Stage.VECTORS_STORED)
    report = fail.Report(FailureType.EMBEDDING_RESULT_INVALID, "wrong")
    fail.fail(db, run.own, report, policy=RetryPolicy())
    assert tables.vectors(db, run.claim.job_id) == {"STALE": 3}
    control.retry(db, run.claim.job_id, reason="test", by="test")
    again = factories.run(db, document=run.document)

    factories.advance(db, again.own, Stage.EMBED_PREPARED)
    assert tables.vectors(db, run.claim.job_id) == {"STALE": 3}
    factories.store_vectors(db, again.own, prepared(db, again), seed=9)

    assert tables.vectors(db, run.claim.job_id) == {"ACTIVE": 3}
