"""The IndexingJob that shows a job. Pure: nothing in it changes by itself, such as a lease or an age."""

import re
from typing import Any

from docgrid_core.jobs import JobId
from docgrid_core.store.queries.views import ViewRow
from docgrid_operator.kinds import (
    FIELD_MANAGER,
    INDEXING_JOB,
    MANAGED_BY_LABEL,
    MODEL_LABEL,
    POOL_LABEL,
    STATE_LABEL,
    Object,
)
from docgrid_operator.times import format_time

_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
"""What the value of a label may be, if it is not empty."""


def view_name(job_id: JobId) -> str:
    """Return the name of a job's view."""
    return f"job-{job_id}"


def job_of(name: str) -> JobId | None:
    """Return the job that a view's name says it shows; None for a name that is no view's."""
    found = re.fullmatch(r"job-([1-9][0-9]{0,17})", name)
    return JobId(int(found.group(1))) if found else None


def build_view(row: ViewRow, *, namespace: str, owner: Object | None, redact: bool) -> Object:
    """Return the view of a job; `redact` leaves out what names the document, `owner` is whom it goes with."""
    return {
        "apiVersion": INDEXING_JOB.api_version,
        "kind": INDEXING_JOB.name,
        "metadata": {
            "name": view_name(row.job_id),
            "namespace": namespace,
            "labels": _labels(row),
            **({"ownerReferences": [_reference(owner)]} if owner else {}),
        },
        "spec": _present(
            jobId=row.job_id,
            sourceUri=None if redact else row.source_uri,
            title=None if redact else row.title,
            versionNo=row.version_no,
            model=f"{row.model_name} {row.model_version}".strip(),
            priority=row.priority,
        ),
        "status": _present(
            state=str(row.status),
            attempt=row.attempts,
            retries=f"{row.retry_count}/{row.max_retry_count}",
            worker=row.worker,
            nextRetryAt=format_time(row.next_retry_at),
            errorCode=row.error_code,
            message=row.error_message,
            createdAt=format_time(row.created_at),
            startedAt=format_time(row.started_at),
            finishedAt=format_time(row.finished_at),
        ),
    }


def _labels(row: ViewRow) -> dict[str, str]:
    labels = {
        MANAGED_BY_LABEL: FIELD_MANAGER,
        STATE_LABEL: str(row.status),
        MODEL_LABEL: str(row.model_id),  # its name may hold what a label may not
    }
    pool = row.indexing_worker or ""
    # A worker outside Kubernetes may call its pool what it likes; the view of its job is to be written anyway.
    return {**labels, POOL_LABEL: pool} if _LABEL.fullmatch(pool) else labels


def _reference(owner: Object) -> Object:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def _present(**fields: Any) -> Object:
    return {name: value for name, value in fields.items() if value is not None and value != ""}
