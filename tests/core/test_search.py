"""Search: what is visible, in which order, and that STALE vectors cost no recall."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import text

from docgrid_core.database import Database, Transaction
from docgrid_core.errors import BadParameter, ModelNotSearchable, VectorInvalid
from docgrid_core.records import EmbeddingModel
from docgrid_core.store import documents, models
from docgrid_core.store.search import SCAN_SETTINGS, SearchHit, nearest, search
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Stage
from support import tables

QUERY = [1.0, 0, 0, 0, 0, 0, 0, 0]


def index(db: Database, name: str, *, content: str = "content", seed: int = 0) -> factories.Execution:
    """Index a document of three chunks, with vectors of its own."""
    document = factories.register(db, name, content)
    execution = factories.run(db, document=document)
    factories.advance(db, execution.own, Stage.COMPLETED, seed=seed)
    return execution


def place(db: Database, execution: factories.Execution, vectors: Sequence[Sequence[float]]) -> None:
    """Put the vectors of an indexed document's chunks where the test wants them, in order."""
    for chunk_index, vector in enumerate(vectors):
        tables.change(
            db,
            "UPDATE embeddings SET vector = CAST(:vector AS vector) WHERE chunk_id ="
            " (SELECT id FROM document_chunks WHERE document_version_id = :version_id AND chunk_index = :index)",
            vector=str(list(vector)),
            version_id=execution.document.version_id,
            index=chunk_index,
        )


def unit(angle: float) -> list[float]:
    return [float(np.cos(angle)), float(np.sin(angle)), 0, 0, 0, 0, 0, 0]


def found(hits: Sequence[SearchHit]) -> set[tuple[int, int]]:
    return {(hit.document_id, hit.version_no) for hit in hits}


def test_the_nearest_chunks_come_first_with_what_a_reader_needs(db: Database, model: EmbeddingModel) -> None:
    execution = index(db, "paper")
    place(db, execution, [unit(1.0), unit(0.0), unit(0.5)])

    hits = search(db, model, QUERY, top_k=2)

    assert [(hit.rank, hit.chunk_text) for hit in hits] == [(1, "chunk 1"), (2, "chunk 2")]
    first = hits[0]
    assert (first.document_id, first.title, first.source_uri, first.version_no, first.page_no) == (
        execution.document.document_id,
        "paper",
        "s3://bucket/paper.txt",
        1,
        None,
    )


def test_a_score_is_the_cosine_at_six_decimals_and_never_negative(
    db: Database, model: EmbeddingModel
) -> None:
    place(db, index(db, "paper"), [unit(0.0), unit(1.0), unit(3.0)])

    scores = [hit.score for hit in search(db, model, QUERY)]

    assert scores == [1.0, round(float(np.cos(1.0)), 6), 0.0]


def test_the_length_of_a_query_vector_does_not_matter(db: Database, model: EmbeddingModel) -> None:
    index(db, "paper")

    assert search(db, model, [1e15] * 8) == search(db, model, [1e-15] * 8) == search(db, model, [1.0] * 8)


def test_equally_near_chunks_come_in_the_order_of_their_ids(db: Database, model: EmbeddingModel) -> None:
    place(db, index(db, "paper"), [unit(0.3)] * 3)

    assert [hit.chunk_text for hit in search(db, model, QUERY)] == ["chunk 0", "chunk 1", "chunk 2"]


def test_an_empty_database_answers_nothing(db: Database, model: EmbeddingModel) -> None:
    assert search(db, model, QUERY) == []


@pytest.mark.parametrize("stage", [stage for stage in Stage if stage < Stage.COMPLETED])
def test_a_version_is_not_seen_before_it_is_complete(
    db: Database, model: EmbeddingModel, stage: Stage
) -> None:
    factories.run(db, stage)

    assert search(db, model, QUERY) == []


def test_the_old_version_is_seen_until_the_switch_then_only_the_new_one(
    db: Database, model: EmbeddingModel
) -> None:
    document = index(db, "paper").document
    again = factories.run(db, Stage.VECTORS_STORED, document=factories.register(db, "paper", "changed"))
    before = found(search(db, model, QUERY, top_k=50))

    factories.advance(db, again.own, Stage.COMPLETED)

    assert before == {(document.document_id, 1)}
    assert found(search(db, model, QUERY, top_k=50)) == {(document.document_id, 2)}


def test_a_document_indexed_again_has_one_set_of_vectors(db: Database, model: EmbeddingModel) -> None:
    """Case 28."""
    index(db, "paper")
    index(db, "paper", content="changed")

    assert len(search(db, model, QUERY, top_k=50)) == 3
    assert tables.value(db, "SELECT count(*) FROM embeddings WHERE status = 'ACTIVE'") == 3


def test_a_deleted_document_is_gone_at_once(db: Database, model: EmbeddingModel) -> None:
    kept, gone = index(db, "kept"), index(db, "gone")

    documents.delete(db, gone.document.document_id, reason="", by="test")

    assert found(search(db, model, QUERY, top_k=50)) == {(kept.document.document_id, 1)}


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE documents SET status = 'INDEXING'",
        "UPDATE documents SET status = 'DELETED', deleted_at = now()",
        "UPDATE documents SET current_version_id = NULL",
        "UPDATE embeddings SET status = 'STALE'",
    ],
)
def test_each_part_of_being_visible_is_required(db: Database, model: EmbeddingModel, change: str) -> None:
    index(db, "paper")

    tables.change(db, change)

    assert search(db, model, QUERY) == []


def test_a_search_with_a_model_that_was_replaced_meanwhile_is_refused(
    db: Database, model: EmbeddingModel
) -> None:
    models.add(db, provider="builtin", name="other", version="1", dimension=8, config={})
    models.activate(db, "other")

    with pytest.raises(ModelNotSearchable, match="not the active one"):
        search(db, model, QUERY)


def test_half_precision_answers_like_full_precision(db: Database) -> None:
    dimension = 2001
    model = models.add(db, provider="builtin", name="wide", version="1", dimension=dimension, config={})
    model = models.activate(db, "wide")
    execution = index(db, "paper")
    query = [1.0] + [0.0] * (dimension - 1)
    place(db, execution, [[1.0] + [noise] * (dimension - 1) for noise in (0.01, 0.0, 0.002)])

    hits = search(db, model, query)

    assert [hit.chunk_text for hit in hits] == ["chunk 1", "chunk 2", "chunk 0"]
    assert hits[0].score == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("top_k", [0, -1, 51])
def test_top_k_is_1_to_50(db: Database, model: EmbeddingModel, top_k: int) -> None:
    with pytest.raises(BadParameter, match="1 to 50"):
        search(db, model, QUERY, top_k=top_k)


@pytest.mark.parametrize(
    "vector",
    [
        [0.0] * 8,
        [1e-30] * 8,
        [1e30] * 8,
        [float("nan")] * 8,
        [float("inf")] + [0.0] * 7,
        [1.0] * 7,
        [1.0] * 9,
        [],
    ],
)
def test_a_query_vector_without_direction_or_of_another_dimension_is_refused(
    db: Database, model: EmbeddingModel, vector: list[float]
) -> None:
    with pytest.raises(VectorInvalid):
        search(db, model, vector)


def test_the_settings_of_a_search_end_with_it(db: Database, model: EmbeddingModel) -> None:
    index(db, "paper")
    search(db, model, QUERY)

    assert tables.value(db, "SELECT current_setting('hnsw.iterative_scan')") == "off"
    assert tables.value(db, "SELECT current_setting('enable_sort')") == "on"


DIMENSION = 32
DOCUMENTS = 50
CHUNKS = 10
GENERATIONS = 10

ADD_VERSIONS = """
    WITH version AS (
      INSERT INTO document_versions (document_id, version_no, file_object_id, original_filename, content_type,
                                     file_hash, status, indexed_at)
      SELECT id, :generation, 1, 'f', 't', repeat('a', 64), 'INDEXED', now() FROM documents
      RETURNING id, document_id
    ), document AS (
      UPDATE documents SET current_version_id = version.id FROM version WHERE documents.id = version.document_id
    )
    INSERT INTO document_chunks (document_version_id, chunk_index, chunk_text, token_count, char_start, char_end,
                                 content_hash)
    SELECT id, n, 'text', 1, 0, 1, 'hash' FROM version, generate_series(0, :chunks - 1) AS n
    ORDER BY document_id, n
    RETURNING id, document_version_id, (SELECT document_id FROM version WHERE version.id = document_version_id)
"""


def add_generation(
    tx: Transaction, model: EmbeddingModel, generation: int, vectors: NDArray[np.float64]
) -> list[int]:
    """Give every document a new current version with these vectors; return the ids of its chunks."""
    chunks = tx.execute(text(ADD_VERSIONS), generation=generation, chunks=CHUNKS).all()
    tx.execute(text("UPDATE embeddings SET status = 'STALE' WHERE status = 'ACTIVE'"))
    tx.copy_in(
        "COPY embeddings (chunk_id, embedding_model_id, document_version_id, document_id, vector, vector_hash,"
        " status) FROM STDIN (FORMAT BINARY)",
        ["int8", "int8", "int8", "int8", "vector", "text", "text"],
        [
            (chunk, model.id, version, document, vector, "hash", "ACTIVE")
            for (chunk, version, document), vector in zip(chunks, vectors.astype(np.float32), strict=True)
        ],
    )
    return [chunk for chunk, _, _ in chunks]


def stock(db: Database, model: EmbeddingModel, rng: np.random.Generator) -> dict[int, NDArray[np.float64]]:
    """Index documents ten times over, each time by nearly the same vectors; return the last ones by chunk.

    It leaves what completions leave, without making them: nine of ten vectors are STALE, beside an ACTIVE one.
    """
    tables.change(db, f"ALTER TABLE embeddings_m{model.id} SET (autovacuum_enabled = false)")
    tables.change(
        db,
        """
        INSERT INTO file_objects (storage_provider, bucket_name, object_key, original_filename, content_type,
                                  file_size, file_hash)
        VALUES ('S3', 'b', 'k', 'f', 't', 1, repeat('a', 64))
        """,
    )
    tables.change(
        db,
        """
        INSERT INTO documents (source_uri, title, document_type, status)
        SELECT 'u' || n, 't', 'TXT', 'INDEXED' FROM generate_series(1, :documents) AS n
        """,
        documents=DOCUMENTS,
    )
    base = rng.normal(size=(DOCUMENTS * CHUNKS, DIMENSION))
    for generation in range(1, GENERATIONS + 1):
        vectors = base + 0.05 * rng.normal(size=base.shape)
        add = partial(add_generation, model=model, generation=generation, vectors=vectors)
        chunks = db.run(add)
    tables.change(db, "ANALYZE")
    return dict(zip(chunks, vectors, strict=True))


def exact(visible: dict[int, NDArray[np.float64]], query: NDArray[np.float64], top_k: int) -> set[int]:
    matrix = np.stack(list(visible.values()))
    similarity = matrix @ query / np.linalg.norm(matrix, axis=1)
    ids = list(visible)
    return {ids[place] for place in np.argsort(-similarity)[:top_k]}


def test_with_90_percent_stale_vectors_before_any_vacuum_recall_holds_and_no_answer_is_short(
    db: Database,
) -> None:
    rng = np.random.default_rng(1)
    models.add(db, provider="builtin", name="recall", version="1", dimension=DIMENSION, config={})
    model = models.activate(db, "recall")
    visible = stock(db, model, rng)
    queries = [vector + 0.5 * rng.normal(size=DIMENSION) for vector in list(visible.values())[::10]]

    recalled = 0
    for query in queries:
        hits = search(db, model, query.tolist(), top_k=10)
        assert len(hits) == 10
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        recalled += len(exact(visible, query, 10) & {hit.chunk_id for hit in hits})

    assert recalled / (10 * len(queries)) >= 0.95
    assert len(search(db, model, queries[0].tolist(), top_k=50)) == 50


def test_a_search_reads_the_vector_index_of_its_model_alone_and_sorts_nothing_but_its_answer(
    db: Database, model: EmbeddingModel
) -> None:
    for name in ("one", "two"):
        models.add(db, provider="builtin", name=name, version="1", dimension=8, config={})
    index(db, "paper")

    def plan(tx: Transaction) -> str:
        tx.execute(SCAN_SETTINGS)
        statement = text(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {nearest(model, top_k=5).text}")
        return "\n".join(row[0] for row in tx.execute(statement, query=str(QUERY)))

    found = db.run(plan)
    assert f"Index Scan using embeddings_m{model.id}_vector_idx" in found
    assert "Seq Scan on embeddings" not in found
    assert "Sort Key: e." not in found
    assert found.count("embeddings_m") == 2  # the index and its table
