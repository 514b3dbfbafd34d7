"""What search sees, and the nearest chunks of it.

Called by the CLI and later the API, after the query's text was embedded: no connection is held meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import TextClause, text

from docgrid_core.database import Transaction, transactional
from docgrid_core.errors import BadParameter, ModelNotSearchable
from docgrid_core.jobs import DocumentId
from docgrid_core.records import EmbeddingModel
from docgrid_core.store.models import find_model_in
from docgrid_core.store.partitions import vector_type
from docgrid_core.vectors import check_vectors

MAX_TOP_K = 50

VISIBLE = """
    embeddings AS e
    JOIN documents AS d
      ON d.id = e.document_id AND d.current_version_id = e.document_version_id
     AND d.status = 'INDEXED' AND d.deleted_at IS NULL
    WHERE e.status = 'ACTIVE' AND e.embedding_model_id = {model_id}
      AND EXISTS (SELECT FROM embedding_models AS m WHERE m.id = {model_id} AND m.is_active AND m.is_searchable)
"""
"""The one definition of what search sees: a FROM and a WHERE clause over `e` and `d`, for a model's id.

The id is formatted in as a number, so that the model's partition and its index are chosen when it is planned.
"""

# The scan of the vector index goes on in strict order until enough visible rows are found, however many STALE
# ones it meets before a VACUUM removes them, and the limits that would end it early are raised. A wide beam: of
# a document that was indexed ten times, nine of ten candidates are STALE (recall was 0.89 with 100, 0.99 with
# 400). Sorting is off, because the planner can't see how few rows the scan reads, and would sort the table.
SCAN_SETTINGS = text(
    """
    SELECT set_config('hnsw.iterative_scan', 'strict_order', true),
           set_config('hnsw.ef_search', '400', true),
           set_config('hnsw.max_scan_tuples', '1000000', true),
           set_config('hnsw.scan_mem_multiplier', '16', true),
           set_config('enable_sort', 'off', true)
    """
)


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One chunk of an answer; `rank` counts from 1, `score` is 1 − cosine distance, at least 0."""

    rank: int
    document_id: DocumentId
    title: str
    source_uri: str
    version_no: int
    chunk_id: int
    chunk_text: str = field(repr=False)
    page_no: int | None
    section_title: str | None = field(repr=False)
    score: float


@transactional
def search(
    tx: Transaction, model: EmbeddingModel, query_vector: Sequence[float], *, top_k: int = 5
) -> list[SearchHit]:
    """Return the `top_k` (1 to 50) visible chunks nearest to the query, nearest first; fewer if there are fewer.

    Raises `BadParameter`, `VectorInvalid` for a query vector that has not the model's dimension or no direction,
    and `ModelNotSearchable` when `model` is not the active one any more: embed the query with the one that is.
    """
    if not 1 <= top_k <= MAX_TOP_K:
        raise BadParameter(f"top_k must be 1 to {MAX_TOP_K}, not {top_k}")
    query = _literal(query_vector, model.dimension)
    tx.execute(SCAN_SETTINGS)
    rows = tx.execute(nearest(model, top_k=top_k), query=query).all()
    if not rows:
        _require_searchable(tx, model)
    return [SearchHit(rank, *row) for rank, row in enumerate(rows, 1)]


def nearest(model: EmbeddingModel, *, top_k: int) -> TextClause:
    """Return the statement of a search; its one parameter is the query vector as text."""
    cast = vector_type(model.dimension)
    visible = VISIBLE.format(model_id=int(model.id))
    return text(
        f"""
        WITH nearest AS MATERIALIZED (
          SELECT e.chunk_id, e.document_version_id, d.id AS document_id, d.title, d.source_uri,
                 e.vector::{cast} <=> CAST(:query AS {cast}) AS distance
          FROM {visible}
          ORDER BY e.vector::{cast} <=> CAST(:query AS {cast})
          LIMIT {int(top_k)}
        )
        SELECT nearest.document_id, nearest.title, nearest.source_uri, v.version_no, c.id, c.chunk_text,
               c.page_no, c.section_title, round(greatest(1 - nearest.distance, 0)::numeric, 6)::float8
        FROM nearest
        JOIN document_chunks c ON c.id = nearest.chunk_id
        JOIN document_versions v ON v.id = nearest.document_version_id
        ORDER BY nearest.distance, c.id
        """  # noqa: S608 - composed of constants and numbers
    )


def _literal(vector: Sequence[float], dimension: int) -> str:
    """Return the vector as pgvector reads it; raises `VectorInvalid`."""
    (values,) = check_vectors([vector], count=1, dimension=dimension)
    return f"[{','.join(map(str, values))}]"


def _require_searchable(tx: Transaction, model: EmbeddingModel) -> None:
    if find_model_in(tx, "").id != model.id:
        raise ModelNotSearchable(f"model {model.name} is not the active one any more")
