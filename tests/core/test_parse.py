"""Parse and chunk: prepare, store, their replays, and what they refuse."""

from dataclasses import replace
from functools import partial

import pytest

from docgrid_core.database import Database
from docgrid_core.errors import BadParameter, ChunkingNotAllowed, EmbeddingSetInconsistent, InternalError
from docgrid_core.jobs import DocumentType
from docgrid_core.records import ParseTask
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import parse, recovery, release
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Execution, Stage
from support import races, tables


def store(db: Database, run: Execution) -> None:
    parse.store(db, run.own, factories.chunks(), lease_duration=LEASE)


def test_preparing_names_the_registered_bytes_and_begins_the_stage(db: Database) -> None:
    source = factories.source("a", "hello")
    run = factories.run(db, document=factories.register(db, "a", "hello"))

    task = parse.prepare(db, run.own)

    assert isinstance(task, ParseTask)
    assert (task.source, task.document_type) == (source.object, DocumentType.TXT)
    assert tables.version(db, run.claim.job_id).status == "PARSING"
    assert tables.document(db, run.claim.job_id).status == "INDEXING"
    assert tables.events(db, run.claim.job_id)[2:] == ["PARSE_STARTED"]


def test_preparing_again_resumes_without_a_second_event(db: Database) -> None:
    run = factories.run(db)
    first = parse.prepare(db, run.own)
    release.release(db, run.claim, reason="shutdown")
    again = factories.run(db, document=run.document)
    before = tables.dump(db)

    second = parse.prepare(db, again.own)

    assert isinstance(first, ParseTask)
    assert isinstance(second, ParseTask)
    assert second.source == first.source
    assert tables.dump(db) == before


def test_preparing_a_version_that_has_its_chunks_is_a_replay(db: Database) -> None:
    run = factories.run(db, Stage.CHUNKS_STORED)
    before = tables.dump(db)

    assert parse.prepare(db, run.own) is None
    assert tables.dump(db) == before


def test_an_indexed_document_stays_indexed_while_a_newer_version_is_parsed(db: Database) -> None:
    factories.index(db, "a", "old")
    run = factories.run(db, Stage.CHUNKS_STORED, document=factories.register(db, "a", "new"))
    assert tables.document(db, run.claim.job_id).status == "INDEXED"


def test_stored_chunks_are_what_was_given_and_the_job_stays_processing(db: Database) -> None:
    run = factories.run(db, Stage.PARSE_PREPARED)
    chunk = replace(
        factories.chunks(1)[0],
        text="a\0b \ud800 \U0001f600",
        section_title="head\0ing",
        page_no=4,
        metadata={"path": ["x\0"], "\0key": {"deep": "\udfff"}},
    )

    parse.store(db, run.own, [chunk], lease_duration=LEASE)

    (row,) = tables.fetch(db, "SELECT * FROM document_chunks")
    assert (row.chunk_index, row.token_count, row.char_start, row.char_end, row.page_no) == (0, 2, 0, 7, 4)
    assert row.content_hash == chunk.content_hash
    assert row.chunk_text == "ab � \U0001f600", "cases 16 and 17: cleaned, real characters kept"
    assert (row.section_title, row.metadata) == ("heading", {"path": ["x"], "key": {"deep": "�"}})
    assert tables.job(db, run.claim.job_id).status == "PROCESSING"
    assert tables.version(db, run.claim.job_id).status == "CHUNKED"
    assert tables.events(db, run.claim.job_id)[-1] == "CHUNKED"


def test_storing_chunks_renews_the_lease(db: Database) -> None:
    run = factories.run(db, Stage.PARSE_PREPARED)
    parse.store(db, run.own, factories.chunks(), lease_duration=2 * LEASE)
    assert tables.job(db, run.claim.job_id).lock_expires_at > run.claim.locked_at + 1.9 * LEASE


def test_a_longer_lease_is_never_shortened_by_a_store(db: Database) -> None:
    run = factories.run(db, Stage.PARSE_PREPARED, lease=2 * LEASE)
    store(db, run)
    assert tables.job(db, run.claim.job_id).lock_expires_at == run.claim.lock_expires_at


def test_storing_again_is_a_replay(db: Database) -> None:
    run = factories.run(db, Stage.CHUNKS_STORED)
    before = tables.dump(db)
    store(db, run)
    assert tables.dump(db) == before


def test_two_stores_at_once_leave_one_set(db: Database) -> None:
    run = factories.run(db, Stage.PARSE_PREPARED)

    assert races.together([partial(store, db, run)] * 3) == [None] * 3
    assert tables.value(db, "SELECT count(*) FROM document_chunks") == 3
    assert tables.events(db, run.claim.job_id).count("CHUNKED") == 1


def test_a_version_without_chunks_can_not_be_stored(db: Database) -> None:
    run = factories.run(db, Stage.PARSE_PREPARED)
    with pytest.raises(BadParameter):
        parse.store(db, run.own, [], lease_duration=LEASE)


def test_storing_before_preparing_is_refused(db: Database) -> None:
    run = factories.run(db)
    with pytest.raises(ChunkingNotAllowed):
        store(db, run)


@pytest.mark.parametrize("stage", [Stage.EMBED_PREPARED, Stage.VECTORS_STORED])
def test_a_version_past_chunking_is_refused(db: Database, stage: Stage) -> None:
    run = factories.run(db, stage)
    before = tables.dump(db)
    with pytest.raises(ChunkingNotAllowed):
        parse.prepare(db, run.own)
    with pytest.raises(ChunkingNotAllowed):
        store(db, run)
    assert tables.dump(db) == before


def test_chunks_and_state_that_disagree_are_a_fault(db: Database) -> None:
    run = factories.run(db, Stage.CHUNKS_STORED)
    tables.change(db, "UPDATE document_versions SET status = 'PARSING'")
    with pytest.raises(EmbeddingSetInconsistent):
        parse.prepare(db, run.own)
    tables.change(db, "UPDATE document_versions SET status = 'CHUNKED'")
    tables.change(db, "DELETE FROM document_chunks")
    with pytest.raises(EmbeddingSetInconsistent):
        parse.prepare(db, run.own)
    with pytest.raises(EmbeddingSetInconsistent):
        store(db, run)


def test_a_document_that_was_marked_deleted_is_refused(db: Database) -> None:
    run = factories.run(db)
    tables.change(db, "UPDATE documents SET status = 'DELETED', deleted_at = now()")
    with pytest.raises(ChunkingNotAllowed):
        parse.prepare(db, run.own)


def test_a_chunk_that_the_tables_refuse_names_the_constraint_and_no_text(db: Database) -> None:
    run = factories.run(db, Stage.PARSE_PREPARED)
    first, second, _ = factories.chunks(word="canary-text")
    before = tables.dump(db)

    with pytest.raises(InternalError) as caught:
        parse.store(db, run.own, [first, replace(second, index=0)], lease_duration=LEASE)

    assert (
        caught.value.detail == "SQLSTATE 23505 constraint document_chunks_document_version_id_chunk_index_key"
    )
    assert "canary" not in f"{caught.value!r} {caught.value.detail} {caught.value.__cause__!r}"
    assert tables.dump(db) == before


def test_an_owner_that_lost_its_job_while_the_chunks_travelled_writes_nothing(
    db: Database, database_settings: DatabaseSettings
) -> None:
    run = factories.run(db, Stage.PARSE_PREPARED)
    with races.connected(database_settings) as slow:
        # The statement after COPY is the job's lock: everything has been sent by then.
        with races.Frozen(slow, partial(store, slow, run), before=2) as late:
            tables.expire_lease(db, run.claim.job_id)
            recovery.recover_batch(db, limit=10, policy=RetryPolicy())
            before = tables.dump(db)
        assert type(late.call.error()).__name__ == "JobNotProcessing"
    assert tables.dump(db) == before
