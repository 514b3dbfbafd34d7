"""The job's history: one line for each transition, written in the transaction that makes it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.dialects.postgresql import JSONB

from docgrid_core.database import Transaction
from docgrid_core.jobs import EventType, JobId, JobStatus

INSERT_EVENT = text(
    """
    INSERT INTO indexing_events
      (embedding_job_id, event_type, from_status, to_status, message, metadata, occurred_at)
    VALUES (:job_id, :event_type, :from_status, :to_status, :message, :metadata, :at)
    """
).bindparams(bindparam("metadata", type_=JSONB))


def record(
    tx: Transaction,
    job_id: JobId,
    event: EventType,
    move: tuple[JobStatus | None, JobStatus],
    *,
    at: datetime,
    message: str | None = None,
    **metadata: Any,
) -> None:
    """Append one event; `move` is the job's status before and after it."""
    values: Mapping[str, Any] = {
        "job_id": job_id,
        "event_type": event,
        "from_status": move[0],
        "to_status": move[1],
        "message": message,
        "metadata": metadata,
        "at": at,
    }
    tx.execute(INSERT_EVENT, **values)
