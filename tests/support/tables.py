"""Looking into a test's database, and turning its clock: what no transaction of the protocol offers.

Time is never waited for: a lease or a heartbeat is set back instead.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Row, text

from docgrid_core.database import Database
from docgrid_core.jobs import JobId, WorkerId
from docgrid_core.schema import metadata

_HELD = 4711  # an advisory lock of these tests

Dump = Mapping[str, list[str]]


def fetch(db: Database, statement: str, **parameters: Any) -> list[Row[Any]]:
    """Return the rows of a query."""
    return db.run(lambda tx: list(tx.execute(text(statement), **parameters)))


def value(db: Database, statement: str, **parameters: Any) -> Any:
    """Return the one value of a query."""
    ((result,),) = fetch(db, statement, **parameters)
    return result


def change(db: Database, statement: str, **parameters: Any) -> None:
    """Run a statement that changes rows or tables."""
    db.run(lambda tx: tx.execute(text(statement), **parameters))


def job(db: Database, job_id: JobId | None) -> Row[Any]:
    """Return the row of a job."""
    (row,) = fetch(db, "SELECT * FROM embedding_jobs WHERE id = :id", id=job_id)
    return row


def version(db: Database, job_id: JobId | None) -> Row[Any]:
    """Return the version row of a job."""
    (row,) = fetch(
        db,
        "SELECT v.* FROM document_versions v JOIN embedding_jobs j ON j.document_version_id = v.id WHERE j.id = :id",
        id=job_id,
    )
    return row


def document(db: Database, job_id: JobId | None) -> Row[Any]:
    """Return the document row of a job."""
    (row,) = fetch(db, "SELECT * FROM documents WHERE id = :id", id=version(db, job_id).document_id)
    return row


def attempts(db: Database, job_id: JobId | None) -> list[Row[Any]]:
    """Return the attempts of a job in their order."""
    return fetch(
        db, "SELECT * FROM embedding_job_attempts WHERE embedding_job_id = :id ORDER BY attempt_no", id=job_id
    )


def events(db: Database, job_id: JobId | None) -> list[str]:
    """Return the types of a job's events in their order."""
    rows = fetch(
        db, "SELECT event_type FROM indexing_events WHERE embedding_job_id = :id ORDER BY id", id=job_id
    )
    return [row.event_type for row in rows]


def vectors(db: Database, job_id: JobId | None) -> dict[str, int]:
    """Return how many embeddings of each status the version of a job has."""
    rows = fetch(
        db,
        "SELECT status, count(*) AS number FROM embeddings WHERE document_version_id = :id GROUP BY status",
        id=job(db, job_id).document_version_id,
    )
    return {row.status: row.number for row in rows}


def worker(db: Database, worker_id: WorkerId) -> Row[Any]:
    """Return the row of a worker."""
    (row,) = fetch(db, "SELECT * FROM worker_nodes WHERE id = :id", id=worker_id)
    return row


def dump(db: Database) -> Dump:
    """Return every row of every table: equal dumps mean that nothing was written."""
    names = [table.name for table in metadata.sorted_tables]
    rows = " UNION ALL ".join(f"SELECT '{name}' AS name, t::text AS row FROM {name} t" for name in names)  # noqa: S608
    dumped: dict[str, list[str]] = {name: [] for name in names}
    for row in fetch(db, f"{rows} ORDER BY name, row"):
        dumped[row.name].append(row.row)
    return dumped


def expire_lease(db: Database, job_id: JobId | None) -> None:
    """Let the lease of a job run out a second ago."""
    change(
        db,
        """
        UPDATE embedding_jobs
        SET locked_at = least(locked_at, clock_timestamp() - interval '1 hour'),
            lock_expires_at = clock_timestamp() - interval '1 second'
        WHERE id = :id AND status = 'PROCESSING'
        """,
        id=job_id,
    )


def silence(db: Database, worker_id: WorkerId) -> None:
    """Set the heartbeat of a worker back by an hour."""
    change(
        db,
        "UPDATE worker_nodes SET last_heartbeat_at = last_heartbeat_at - interval '1 hour' WHERE id = :id",
        id=worker_id,
    )


def come_due(db: Database) -> None:
    """Let every delayed job be due now."""
    change(
        db,
        "UPDATE embedding_jobs SET next_retry_at = clock_timestamp()"
        " WHERE next_retry_at IS NOT NULL AND status = 'PENDING'",
    )


def hold_updates(db: Database, table: str, *, event: str = "UPDATE") -> None:
    """Let every change of a row of `table` wait, in mid-statement, while `holding` is entered."""
    change(
        db,
        f"""
        CREATE FUNCTION wait_while_held() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
          PERFORM pg_advisory_xact_lock_shared({_HELD});
          RETURN NEW;
        END $$;
        CREATE TRIGGER wait_while_held BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION wait_while_held()
        """,
    )


@contextmanager
def holding(db: Database) -> Iterator[None]:
    """Let the changes of `hold_updates` wait until the block is left."""
    with db._engine.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _HELD})
        yield
