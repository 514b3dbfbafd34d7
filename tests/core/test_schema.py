"""The schema of the metadata is the schema that migrations make, down to the last CHECK; and the enums' names."""

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text

from docgrid_core.database import Database
from docgrid_core.jobs import (
    VERSION_IN_FLIGHT,
    AttemptStatus,
    CircuitState,
    DocumentStatus,
    DocumentType,
    EmbeddingStatus,
    EventType,
    FailureType,
    JobKind,
    JobStatus,
    StopReason,
    StorageProvider,
    VersionStatus,
    WorkerStatus,
)
from docgrid_core.migrations import migrate
from docgrid_core.schema import metadata
from docgrid_core.settings import DatabaseSettings
from support import races, tables
from support.database import create_database, drop_database, settings_of

OURS = "relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'"

# Everything that the catalogs know of a schema, a line for each thing.
CATALOG = {
    "tables": """
        SELECT relname, relkind::text, reloptions::text, pg_get_partkeydef(oid)
        FROM pg_class WHERE relkind IN ('r', 'p') AND {ours}
    """,
    "columns": """
        SELECT relname, attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity::text,
               pg_get_expr(adbin, adrelid)
        FROM pg_attribute
        JOIN pg_class ON pg_class.oid = attrelid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attnum > 0 AND NOT attisdropped AND relkind IN ('r', 'p') AND {ours}
    """,
    "constraints": """
        SELECT relname, conname, contype::text, condeferrable, condeferred, pg_get_constraintdef(pg_constraint.oid)
        FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid WHERE {ours}
    """,
    "indexes": """
        SELECT relname, pg_get_indexdef(indexrelid)
        FROM pg_index JOIN pg_class ON pg_class.oid = indrelid WHERE {ours}
    """,
}

STATES: dict[tuple[str, str], type[StrEnum]] = {
    ("documents", "status"): DocumentStatus,
    ("documents", "document_type"): DocumentType,
    ("document_versions", "status"): VersionStatus,
    ("embedding_jobs", "status"): JobStatus,
    ("embedding_jobs", "kind"): JobKind,
    ("embedding_job_attempts", "status"): AttemptStatus,
    ("embedding_job_attempts", "failure_type"): FailureType,
    ("worker_nodes", "status"): WorkerStatus,
    ("worker_nodes", "circuit"): CircuitState,
    ("worker_nodes", "stop_reason"): StopReason,
    ("embeddings", "status"): EmbeddingStatus,
    ("indexing_events", "event_type"): EventType,
    ("file_objects", "storage_provider"): StorageProvider,
}


@pytest.fixture
def migrated(empty_database_settings: DatabaseSettings) -> Iterator[Database]:
    """Yield a migrated database without any model, so without partitions."""
    migrate(empty_database_settings)
    with races.connected(empty_database_settings) as db:
        yield db


@pytest.fixture
def created(postgres_url: str) -> Iterator[Database]:
    """Yield a database that was created from the metadata alone."""
    name = create_database(postgres_url, template="template0")
    try:
        with races.connected(settings_of(postgres_url, name)) as db:
            tables.change(db, "CREATE EXTENSION vector")
            db.run(lambda tx: metadata.create_all(tx.connection))
            yield db
    finally:
        drop_database(postgres_url, name)


def catalog(db: Database, part: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in tables.fetch(db, CATALOG[part].format(ours=OURS))), key=repr)


def test_a_migrated_database_has_no_difference_to_the_metadata(migrated: Database) -> None:
    assert (
        migrated.run(lambda tx: compare_metadata(MigrationContext.configure(tx.connection), metadata)) == []
    )


@pytest.mark.parametrize("part", CATALOG)
def test_a_migrated_database_equals_a_created_one(migrated: Database, created: Database, part: str) -> None:
    found = catalog(migrated, part)

    assert found == catalog(created, part)
    assert found


def test_the_comparison_sees_what_alembic_does_not(migrated: Database, created: Database) -> None:
    for statement in (
        "ALTER TABLE embedding_jobs DROP CONSTRAINT embedding_jobs_failed_check",
        "ALTER TABLE worker_nodes RESET (fillfactor)",
        "ALTER TABLE embedding_jobs ALTER priority SET DEFAULT 1",
        "DROP INDEX embedding_jobs_ready_idx",
    ):
        tables.change(migrated, statement)

    assert [part for part in CATALOG if catalog(migrated, part) != catalog(created, part)] == list(CATALOG)


@pytest.mark.parametrize(("table", "column"), STATES)
def test_a_column_takes_exactly_the_names_of_its_enum(db: Database, table: str, column: str) -> None:
    rows = tables.fetch(
        db,
        "SELECT pg_get_constraintdef(oid) AS rule FROM pg_constraint"
        " WHERE conrelid = CAST(:table AS regclass) AND conname = :name",
        table=table,
        name=f"{table}_{column}_check",
    )

    assert set(re.findall(r"'(\w+)'", rows[0].rule)) == {member.value for member in STATES[table, column]}


def test_a_version_in_flight_is_the_same_for_the_schema_and_for_the_code(db: Database) -> None:
    definition = tables.value(db, "SELECT pg_get_indexdef('document_versions_in_flight_key'::regclass)")

    assert set(re.findall(r"'(\w+)'", definition)) == set(VERSION_IN_FLIGHT)


def test_no_index_of_workers_mentions_what_a_heartbeat_writes(db: Database) -> None:
    """So that heartbeats are HOT updates, which leave no index entries behind."""
    rows = tables.fetch(
        db,
        "SELECT attname FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)"
        " WHERE indrelid = 'worker_nodes'::regclass",
    )

    assert {row.attname for row in rows} == {"id", "instance_id", "pod_uid"}


def test_the_searchable_model_is_at_most_one(db: Database) -> None:
    insert = (
        "INSERT INTO embedding_models (provider, model_name, model_version, dimension, is_active, is_searchable)"
        " VALUES ('p', :name, '1', 8, :active, :searchable) ON CONFLICT DO NOTHING"
    )

    def rows(name: str, *, active: bool, searchable: bool) -> int:
        return db.run(
            lambda tx: tx.execute(text(insert), name=name, active=active, searchable=searchable).rowcount
        )

    assert rows("second", active=True, searchable=True) == 0
    assert rows("active", active=True, searchable=False) == 1
    assert rows("searchable", active=False, searchable=True) == 1
