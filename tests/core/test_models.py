"""Models: a partition for each, the switch between them, and dropping one, without a search that waits."""

import contextlib
from datetime import timedelta

import psycopg
import pytest

from docgrid_core.database import Database
from docgrid_core.errors import BadParameter, Busy, ModelChangeNotAllowed, ModelNotFound, ModelNotSearchable
from docgrid_core.records import EmbeddingModel
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import models, partitions
from docgrid_core.store.search import search
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Stage
from support import races, tables

SOON = timedelta(seconds=1)
"""The statement time-out of a search that must not wait for anything."""


def add(db: Database, name: str = "other", *, version: str = "1", dimension: int = 8) -> EmbeddingModel:
    return models.add(
        db, provider="builtin", name=name, version=version, dimension=dimension, config={"p": 1}
    )


def indexes(db: Database, model: EmbeddingModel) -> str:
    rows = tables.fetch(
        db,
        "SELECT indexdef FROM pg_indexes WHERE tablename = :table ORDER BY 1",
        table=partitions.partition_name(model.id),
    )
    return "\n".join(row.indexdef for row in rows)


def attached(db: Database) -> set[str]:
    rows = tables.fetch(
        db, "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'embeddings'::regclass"
    )
    return {row[0] for row in rows}


def embed_all_with(db: Database, other: EmbeddingModel) -> None:
    """Give every ACTIVE embedding a twin of another model, as a re-index into it would."""
    tables.change(
        db,
        "INSERT INTO embeddings (chunk_id, embedding_model_id, document_id, document_version_id, vector,"
        " vector_hash, status) SELECT chunk_id, :model_id, document_id, document_version_id, vector, vector_hash,"
        " status FROM embeddings WHERE status = 'ACTIVE'",
        model_id=other.id,
    )


def test_a_new_model_has_a_partition_and_is_not_searchable(db: Database) -> None:
    model = add(db)

    assert (model.is_active, model.is_searchable, model.config) == (False, False, {"p": 1})
    assert models.list_models(db)[-1] == model
    assert partitions.partition_name(model.id) in attached(db)


def test_a_partition_has_the_indexes_of_search_retention_and_completion(db: Database) -> None:
    found = indexes(db, add(db))

    assert "hnsw (((vector)::vector(8)) vector_cosine_ops) WHERE (status = 'ACTIVE'::text)" in found
    assert "btree (chunk_id) WHERE (status = 'STALE'::text)" in found
    assert "btree (document_version_id, status)" in found
    assert "UNIQUE INDEX" in found


def test_above_2000_dimensions_half_precision_is_indexed(db: Database) -> None:
    assert "hnsw (((vector)::vector(2000)) vector_cosine_ops)" in indexes(db, add(db, "b", dimension=2000))
    assert "hnsw (((vector)::halfvec(2001)) halfvec_cosine_ops)" in indexes(db, add(db, "c", dimension=2001))


def test_a_partition_takes_only_its_model_and_its_dimension_and_chunks_that_exist(
    db: Database, model: EmbeddingModel
) -> None:
    add(db, dimension=3)
    factories.run(db, Stage.VECTORS_STORED)

    rows = tables.fetch(
        db,
        "SELECT conname, pg_get_constraintdef(oid) AS rule FROM pg_constraint"
        " WHERE conrelid = CAST(:table AS regclass) AND contype IN ('c', 'f')",
        table=partitions.partition_name(model.id),
    )
    rules = {row.rule for row in rows}
    assert "CHECK ((vector_dims(vector) = 8))" in rules
    assert "FOREIGN KEY (chunk_id) REFERENCES document_chunks(id)" in rules
    assert any("'ACTIVE'" in rule and "'STALE'" in rule for rule in rules)


def test_adding_a_model_again_returns_it(db: Database) -> None:
    assert add(db) == add(db)
    assert len(models.list_models(db)) == 2


@pytest.mark.parametrize(("dimension", "config"), [(9, {"p": 1}), (8, {"p": 2})])
def test_a_model_can_not_be_added_again_as_another_one(
    db: Database, dimension: int, config: dict[str, int]
) -> None:
    add(db)

    with pytest.raises(ModelChangeNotAllowed, match="another version"):
        models.add(db, provider="builtin", name="other", version="1", dimension=dimension, config=config)


@pytest.mark.parametrize("dimension", [0, -1, 4001])
def test_a_dimension_that_no_index_takes_is_refused(db: Database, dimension: int) -> None:
    with pytest.raises(BadParameter, match="1 to 4000"):
        add(db, dimension=dimension)


def test_a_model_needs_a_name(db: Database) -> None:
    with pytest.raises(BadParameter, match="name"):
        add(db, "")


def test_a_model_added_by_several_at_once_is_added_once(db: Database) -> None:
    outcomes = races.together([lambda: add(db)] * 4)

    assert len(set(map(repr, outcomes))) == 1
    assert len(attached(db)) == 2


def test_adding_a_model_leaves_nothing_when_it_breaks_off_before_any_of_its_statements(
    db: Database, database_settings: DatabaseSettings
) -> None:
    before = attached(db), models.list_models(db)
    left = 0

    def break_off(_statement: str) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ConnectionAbortedError

    with races.connected(database_settings) as other:
        other.listen_to_statements(break_off)
        steps = 0
        for steps in range(50):
            left = steps
            with contextlib.suppress(ConnectionAbortedError):
                add(other)
                break
            assert (attached(db), models.list_models(db)) == before
    assert steps > 8
    assert len(attached(db)) == 2


def test_a_search_does_not_wait_for_a_model_that_waits_for_a_writer_of_chunks(
    db: Database, model: EmbeddingModel, database_settings: DatabaseSettings, session: psycopg.Connection
) -> None:
    factories.run(db, Stage.COMPLETED)
    session.execute("LOCK TABLE document_chunks IN ROW EXCLUSIVE MODE")

    with races.connected(database_settings, application_name="adder") as other:
        adding = races.Call(lambda: add(other))
        races.wait_until(lambda: races.waits_for_lock(db, "adder"))
        with races.connected(database_settings, statement_timeout=SOON) as reader:
            assert len(search(reader, model, [1.0] * 8)) == 3
        assert adding.is_running()
        session.rollback()
        assert adding.result().name == "other"


def test_without_an_active_model_there_is_none_to_search_with(db: Database) -> None:
    tables.change(db, "UPDATE embedding_models SET is_active = false")

    with pytest.raises(ModelNotSearchable, match="docgrid models activate"):
        models.active_model(db)
    with pytest.raises(ModelNotSearchable):
        db.run(models.lock_active_model)


def test_a_model_is_found_by_its_name_and_the_active_one_by_none(db: Database, model: EmbeddingModel) -> None:
    other = add(db)

    assert models.find_model(db, "other") == other
    assert models.find_model(db, "other", "1") == other
    assert models.find_model(db, "") == model == models.active_model(db)
    with pytest.raises(ModelNotFound, match="no embedding model unknown"):
        models.find_model(db, "unknown")
    with pytest.raises(ModelNotFound, match="no version 2"):
        models.find_model(db, "other", "2")


def test_of_several_models_of_a_name_the_version_decides(db: Database) -> None:
    first, second, bare = add(db, version="1"), add(db, version="2"), add(db, "third", version="")
    add(db, "third", version="3")

    assert [models.find_model(db, "other", version) for version in ("1", "2")] == [first, second]
    assert models.find_model(db, "third") == bare
    with pytest.raises(BadParameter, match="several embedding models are called other: builtin 1, builtin 2"):
        models.find_model(db, "other")


def test_activating_a_model_deactivates_the_one_before(db: Database, model: EmbeddingModel) -> None:
    add(db)

    active = models.activate(db, "other")

    assert (active.name, active.is_active, active.is_searchable) == ("other", True, True)
    assert models.active_model(db) == active
    assert [one.is_active for one in models.list_models(db)] == [False, True]


def test_activating_the_active_model_changes_nothing(db: Database, model: EmbeddingModel) -> None:
    factories.register(db)
    before = tables.dump(db)

    assert models.activate(db, model.name) == model
    assert tables.dump(db) == before


def test_a_model_is_not_activated_while_a_job_of_another_is_live(db: Database) -> None:
    add(db)
    job = factories.register(db).job_id

    with pytest.raises(ModelChangeNotAllowed, match=f"job {job} "):
        models.activate(db, "other")


def test_a_model_is_not_activated_before_it_has_embedded_every_current_version_whole(db: Database) -> None:
    other = add(db)
    execution = factories.run(db, Stage.COMPLETED)
    embed_all_with(db, other)
    tables.change(
        db,
        "UPDATE embeddings SET status = 'STALE' WHERE embedding_model_id = :id AND chunk_id ="
        " (SELECT max(chunk_id) FROM embeddings)",
        id=other.id,
    )

    with pytest.raises(ModelChangeNotAllowed, match=f"document {execution.document.document_id} "):
        models.activate(db, "other")

    tables.change(db, "UPDATE embeddings SET status = 'ACTIVE' WHERE embedding_model_id = :id", id=other.id)
    assert models.activate(db, "other").is_searchable


def test_a_model_is_not_activated_without_its_partition(db: Database) -> None:
    other = add(db)
    partitions.detach(db, other.id)

    with pytest.raises(ModelChangeNotAllowed, match="add it again"):
        models.activate(db, "other")

    assert add(db) == other
    assert models.activate(db, "other").is_active


def test_a_job_of_a_model_that_is_just_being_replaced_is_of_the_new_one(
    db: Database, database_settings: DatabaseSettings, session: psycopg.Connection
) -> None:
    other = add(db)
    session.execute("SELECT FROM embedding_models ORDER BY id FOR UPDATE")
    session.execute("UPDATE embedding_models SET is_active = false, is_searchable = false")
    session.execute(
        "UPDATE embedding_models SET is_active = true, is_searchable = true WHERE id = %s", [other.id]
    )

    with races.connected(database_settings, application_name="registrar") as registrar:
        registering = races.Call(lambda: factories.register(registrar))
        races.wait_until(lambda: races.waits_for_lock(db, "registrar"))
        session.commit()

        assert tables.job(db, registering.result().job_id).embedding_model_id == other.id


def test_a_switch_waits_for_a_job_that_is_being_registered_and_then_refuses(
    db: Database, database_settings: DatabaseSettings
) -> None:
    add(db)
    with (
        races.connected(database_settings) as registrar,
        # Its third statement inserts the document: the model is locked by then.
        races.Frozen(registrar, lambda: factories.register(registrar), before=3) as frozen,
        races.connected(database_settings, application_name="switch") as other,
    ):
        switch = races.Call(lambda: models.activate(other, "other"))
        races.wait_until(lambda: races.waits_for_lock(db, "switch"))
        frozen.thaw()

        assert frozen.call.result().job_id is not None
        assert isinstance(switch.error(), ModelChangeNotAllowed)


def test_a_dropped_model_is_gone_with_its_vectors(db: Database, model: EmbeddingModel) -> None:
    factories.run(db, Stage.COMPLETED)
    other = add(db)
    embed_all_with(db, other)

    models.drop(db, "other")

    assert models.list_models(db) == [model]
    assert attached(db) == {partitions.partition_name(model.id)}
    assert tables.value(db, "SELECT to_regclass(:t)", t=partitions.partition_name(other.id)) is None
    assert len(search(db, model, [1.0] * 8)) == 3


def test_the_active_model_is_not_dropped(db: Database, model: EmbeddingModel) -> None:
    with pytest.raises(ModelChangeNotAllowed, match="activate another one first"):
        models.drop(db, model.name)


def test_a_model_that_a_job_or_a_worker_refers_to_is_not_dropped(db: Database, model: EmbeddingModel) -> None:
    worker = factories.register_worker(db)
    job = factories.run(db, Stage.COMPLETED, worker=worker).claim.job_id
    other = add(db)
    embed_all_with(db, other)
    models.activate(db, "other")

    with pytest.raises(ModelChangeNotAllowed, match=f"job {job} .*docgrid prune"):
        models.drop(db, model.name)
    tables.change(db, "UPDATE embedding_jobs SET embedding_model_id = :id", id=other.id)
    with pytest.raises(ModelChangeNotAllowed, match=f"worker {worker.id} .*stop it"):
        models.drop(db, model.name)
    tables.change(db, "UPDATE worker_nodes SET embedding_model_id = :id", id=other.id)
    models.drop(db, model.name)

    assert attached(db) == {partitions.partition_name(other.id)}


def test_a_model_that_does_not_exist_is_not_dropped(db: Database) -> None:
    with pytest.raises(ModelNotFound):
        models.drop(db, "unknown")


def test_a_search_does_not_wait_for_a_drop_that_waits_for_an_old_query(
    db: Database, model: EmbeddingModel, database_settings: DatabaseSettings, session: psycopg.Connection
) -> None:
    factories.run(db, Stage.COMPLETED)
    add(db)
    session.execute("SELECT count(*) FROM embeddings")

    with races.connected(database_settings, application_name="dropper") as other:
        dropping = races.Call(lambda: models.drop(other, "other"))
        races.wait_until(lambda: races.waits_for_lock(db, "dropper"))
        with races.connected(database_settings, statement_timeout=SOON) as reader:
            assert len(search(reader, model, [1.0] * 8)) == 3
        assert dropping.is_running()
        session.rollback()
        dropping.result()

    assert models.list_models(db) == [model]


@pytest.fixture
def half_dropped(
    db: Database, database_settings: DatabaseSettings, session: psycopg.Connection
) -> EmbeddingModel:
    """Return a model whose drop was broken off in the middle of its DETACH."""
    factories.run(db, Stage.COMPLETED)
    other = add(db)
    embed_all_with(db, other)
    session.execute("SELECT count(*) FROM embeddings")
    with (
        races.connected(database_settings, lock_timeout=timedelta(milliseconds=100)) as hasty,
        pytest.raises(Busy),
    ):
        partitions.detach(hasty, other.id)
    session.rollback()
    assert tables.fetch(db, "SELECT FROM pg_inherits WHERE inhdetachpending")
    return other


def test_a_drop_that_was_broken_off_is_finished_by_the_next(
    db: Database, model: EmbeddingModel, half_dropped: EmbeddingModel
) -> None:
    models.drop(db, half_dropped.name)

    assert models.list_models(db) == [model]
    assert attached(db) == {partitions.partition_name(model.id)}


def test_a_drop_that_was_broken_off_holds_up_no_other_drop(
    db: Database, model: EmbeddingModel, half_dropped: EmbeddingModel
) -> None:
    add(db, "third")

    models.drop(db, "third")

    assert models.list_models(db) == [model, half_dropped]


def test_a_model_whose_drop_was_broken_off_can_be_added_again_and_starts_empty(
    db: Database, half_dropped: EmbeddingModel
) -> None:
    assert add(db) == half_dropped

    assert partitions.partition_name(half_dropped.id) in attached(db)
    assert (
        tables.value(db, "SELECT count(*) FROM embeddings WHERE embedding_model_id = :id", id=half_dropped.id)
        == 0
    )


def test_a_drop_that_can_not_get_its_locks_says_that_the_database_is_busy(
    db: Database, database_settings: DatabaseSettings, session: psycopg.Connection
) -> None:
    add(db)
    session.execute("SELECT count(*) FROM embeddings")

    with (
        races.connected(database_settings, lock_timeout=timedelta(milliseconds=10)) as hasty,
        pytest.raises(Busy),
    ):
        models.drop(hasty, "other")


def test_a_model_added_again_while_it_is_dropped_stays(
    db: Database, database_settings: DatabaseSettings
) -> None:
    other = add(db)

    with races.connected(database_settings) as dropper:
        armed = [True]

        def add_back(statement: str) -> None:
            """Add the model again between DETACH and DROP."""
            if "FOR UPDATE" in statement and len(attached(db)) == 1 and armed.pop():
                add(db)

        dropper.listen_to_statements(add_back)
        with pytest.raises(ModelChangeNotAllowed, match="added again"):
            models.drop(dropper, "other")
    assert other in models.list_models(db)
    assert partitions.partition_name(other.id) in attached(db)
