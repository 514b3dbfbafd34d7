"""The partition of `embeddings` that holds one model's vectors: built, attached, detached.

Called by `models` alone. No search ever waits for DDL: a partition has its indexes before it is attached, locks
are asked for with a short time-out again and again, and a partition leaves by DETACH CONCURRENTLY.
"""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import text

from docgrid_core.database import Database, Transaction
from docgrid_core.errors import Busy
from docgrid_core.jobs import ModelId
from docgrid_core.records import EmbeddingModel

R = TypeVar("R")

MAX_FULL_PRECISION = 2000
"""The most dimensions that an HNSW index takes at full precision; above it indexes and compares `halfvec`."""

_LOCK_ROUNDS = 10

IS_ATTACHED = text(
    """
    SELECT count(*) FROM pg_inherits
    WHERE inhrelid = to_regclass(:partition) AND inhparent = 'embeddings'::regclass AND NOT inhdetachpending
    """
)
HALF_DETACHED = text(
    """
    SELECT inhrelid::regclass::text FROM pg_inherits
    WHERE inhparent = 'embeddings'::regclass AND inhdetachpending
    """
)
SHORT_LOCK_TIMEOUT = text("SET LOCAL lock_timeout = '200ms'")


def partition_name(model_id: ModelId) -> str:
    """Return the table that holds a model's vectors."""
    return f"embeddings_m{int(model_id)}"


def vector_type(dimension: int) -> str:
    """Return the SQL type that a model's vectors are indexed and compared as."""
    kind = "vector" if dimension <= MAX_FULL_PRECISION else "halfvec"
    return f"{kind}({int(dimension)})"


def is_attached(tx: Transaction, model_id: ModelId) -> bool:
    """Tell whether the model's partition is part of `embeddings`."""
    return bool(tx.execute(IS_ATTACHED, partition=partition_name(model_id)).scalar())


def build(tx: Transaction, model: EmbeddingModel) -> None:
    """Create the model's partition with its indexes and attach it, waiting for no lock longer than 0.2 s.

    The foreign key to the chunks comes with ATTACH, which waits for writers of chunks: made before, ATTACH would
    replace its triggers, under a lock that holds up searches too. What a broken-off `drop` left of an earlier
    partition is given up.
    """
    name, cast = partition_name(model.id), vector_type(model.dimension)
    tx.execute(SHORT_LOCK_TIMEOUT)
    for statement in (
        f"DROP TABLE IF EXISTS {name}",
        f"""
        CREATE TABLE {name} (
          LIKE embeddings INCLUDING DEFAULTS INCLUDING CONSTRAINTS,
          CONSTRAINT {name}_pkey PRIMARY KEY (chunk_id, embedding_model_id),
          CONSTRAINT {name}_dimension_check CHECK (vector_dims(vector) = {int(model.dimension)})
        ) WITH (
          autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
          autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0
        )
        """,
        f"CREATE INDEX {name}_document_version_id_status_idx ON {name} (document_version_id, status)",
        f"CREATE INDEX {name}_stale_idx ON {name} (chunk_id) WHERE status = 'STALE'",
        f"""
        CREATE INDEX {name}_vector_idx ON {name}
        USING hnsw ((vector::{cast}) {cast.partition("(")[0]}_cosine_ops) WHERE status = 'ACTIVE'
        """,
        f"ALTER TABLE embeddings ATTACH PARTITION {name} FOR VALUES IN ({int(model.id)})",
    ):
        tx.execute(text(statement))


def drop_detached(tx: Transaction, model_id: ModelId) -> None:
    """Drop the model's detached table: dropping its foreign key locks the chunks, so it waits 0.2 s at most."""
    tx.execute(SHORT_LOCK_TIMEOUT)
    tx.execute(text(f"DROP TABLE IF EXISTS {partition_name(model_id)}"))


def finish_detaching(db: Database) -> None:
    """Finish what an interrupted DETACH CONCURRENTLY left: until then no other partition can be detached."""
    for (partition,) in db.run(lambda tx: tx.execute(HALF_DETACHED).all()):
        db.run_statement(text(f"ALTER TABLE embeddings DETACH PARTITION {partition} FINALIZE"), {})


def detach(db: Database, model_id: ModelId) -> None:
    """Take the model's partition out of `embeddings` if it is there.

    DETACH CONCURRENTLY waits for old queries without holding up new ones. Raises `Busy` when it had to give up:
    the partition is then half detached, and a repeat finishes it.
    """
    finish_detaching(db)
    if db.run(lambda tx: is_attached(tx, model_id)):
        statement = f"ALTER TABLE embeddings DETACH PARTITION {partition_name(model_id)} CONCURRENTLY"
        db.run_statement(text(statement), {})


def patiently(step: Callable[[], R]) -> R:
    """Return what `step` does, asking again while others hold its locks; raises `Busy` in the end."""
    for _ in range(_LOCK_ROUNDS - 1):
        try:
            return step()
        except Busy:
            continue
    return step()
