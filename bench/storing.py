"""V1: a version's vectors, through the store's transaction and by a plain binary COPY of the same rows.

A version has 200 chunks of 384 dimensions. The store's side is the whole transaction: hashes, COPY into its
staging table, locks and fence, comparison with the chunks, insert, renewal of the lease. The other side copies
the ready-made rows into a table of its own with the same keys, checks and indexes, the foreign key to the chunks
and the HNSW index included, in one transaction a version. The two take turns, the order changing with every
version, so both indexes grow alike; what counts is the version with the median ratio. The vectors are random, which is
as hard for the index as it gets. Commits do not wait for the disk.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from pgvector import Vector
from pgvector.psycopg import register_vector

from bench.figures import Benchmark, Outcome, Say, at_least, median_pair
from bench.servers import APPLICATION, cluster
from docgrid_core.database import Database
from docgrid_core.records import EmbedTask
from docgrid_core.store import embed
from docgrid_core.store.partitions import partition_name
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Execution, Stage
from docgrid_core.vectors import Vectors

CHUNKS = 200
DIMENSION = 384
VERSIONS = 25
TARGET = 0.8

_TYPES = ("int8", "int8", "int8", "int8", "vector", "text", "text")
_COPY = """
    COPY plain_embeddings
      (chunk_id, embedding_model_id, document_id, document_version_id, vector, vector_hash, status)
    FROM STDIN (FORMAT BINARY)
"""


def measure(say: Say) -> Outcome:
    """Store the same versions on both sides."""
    with cluster(durable=False) as server:
        settings = server.migrated("vectors", dimension=DIMENSION)
        with (
            contextlib.closing(Database(settings, application_name=APPLICATION)) as db,
            server.connect("vectors") as connection,
        ):
            register_vector(connection)
            _create_plain_table(connection, db)
            seconds = []
            for number in range(VERSIONS):
                seconds.append(_store_one(db, connection, number))
                say(f"version {number + 1}: {seconds[-1][0]:.3f} against {seconds[-1][1]:.3f} s")
    rates = [(CHUNKS / ours, CHUNKS / plain) for ours, plain in seconds]
    figure = at_least("vectors stored", *median_pair(rates), unit="vectors/s", target=TARGET)
    return Outcome([figure], {"seconds": seconds})


def _create_plain_table(connection: "psycopg.Connection[Any]", db: Database) -> None:
    """Create a table that equals the model's partition: columns, checks, keys, indexes."""
    execution = factories.run(db, Stage.CHUNKS_STORED)
    task = embed.prepare(db, execution.own)
    partition = partition_name(task.model.id) if task else ""
    connection.execute(f"CREATE TABLE plain_embeddings (LIKE {partition} INCLUDING ALL)")
    connection.execute(
        "ALTER TABLE plain_embeddings ADD FOREIGN KEY (chunk_id) REFERENCES document_chunks (id)"
    )


def _store_one(db: Database, connection: "psycopg.Connection[Any]", number: int) -> tuple[float, float]:
    """Return the seconds that one version took through the store, and by COPY."""
    execution = factories.run(db)
    factories.advance(db, execution.own, Stage.CHUNKS_STORED, new_chunks=factories.chunks(CHUNKS))
    task = embed.prepare(db, execution.own)
    if task is None:
        raise RuntimeError("a new version has vectors already")
    vectors = factories.vectors(task, seed=number)
    plain = _rows(execution, task, vectors)
    sides: list[Callable[[], None]] = [
        lambda: _store(db, execution, task, vectors),
        lambda: _copy(connection, plain),
    ]
    seconds = [0.0, 0.0]
    for side in (0, 1) if number % 2 == 0 else (1, 0):
        began = time.perf_counter()
        sides[side]()
        seconds[side] = time.perf_counter() - began
    return seconds[0], seconds[1]


def _store(db: Database, execution: Execution, task: EmbedTask, vectors: Vectors) -> None:
    limit = factories.STORE_TIMEOUT
    embed.store(db, execution.own, task, vectors, lease_duration=factories.LEASE, timeout=limit)


def _copy(connection: "psycopg.Connection[Any]", plain: Sequence[tuple[object, ...]]) -> None:
    with connection.transaction(), connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(_TYPES)
        for row in plain:
            copy.write_row(row)


def _rows(execution: Execution, task: EmbedTask, vectors: Vectors) -> list[tuple[object, ...]]:
    key = (task.model.id, execution.document.document_id, execution.document.version_id)
    return [
        (chunk.id, *key, Vector(vector), hashlib.sha256(vector.astype(">f4").tobytes()).hexdigest(), "ACTIVE")
        for chunk, vector in zip(task.chunks, vectors, strict=True)
    ]


BENCHMARK = Benchmark("V1", "Vectors stored", __doc__, measure)
