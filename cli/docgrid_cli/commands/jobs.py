"""`docgrid jobs`: lists, shows, watches, retries and cancels indexing jobs."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from docgrid_cli.advice import ADVICE
from docgrid_cli.bulk import Change, change_matching, change_named
from docgrid_cli.commands import new_group
from docgrid_cli.installation import find_installation
from docgrid_cli.options import (
    DocumentOption,
    JobArgument,
    JobsArgument,
    Limit,
    Output,
    PageNumber,
    Reason,
    WorkerOption,
    Yes,
    asked_by,
)
from docgrid_cli.render import (
    Column,
    Format,
    View,
    age,
    show_facts,
    show_page,
    show_table,
    show_value,
    source_of,
    span,
)
from docgrid_core.jobs import JOB_LIVE, DocumentId, FailureType, JobId, JobStatus, WorkerId
from docgrid_core.store import control, queries
from docgrid_core.store.queries import AttemptView, EventView, JobDetail, JobFilter, JobSummary

app = new_group("jobs")

Status = Annotated[JobStatus | None, typer.Option("--status", "-s", case_sensitive=False, help="Only these.")]
Failure = Annotated[
    FailureType | None,
    typer.Option(
        "--failure-type",
        "-f",
        metavar="TYPE",
        case_sensitive=False,
        help="Only FAILED jobs that failed so last, e.g. WORKER_CRASHED.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every job that can be.")]


class Live(StrEnum):
    """States of a job that can be canceled."""

    PENDING = "PENDING"
    PROCESSING = "PROCESSING"


LiveStatus = Annotated[Live | None, typer.Option("--status", "-s", case_sensitive=False, help="Only these.")]


@app.command("list")
def list_jobs(
    status: Status = None,
    failure_type: Failure = None,
    document: DocumentOption = None,
    worker: WorkerOption = None,
    limit: Limit = 50,
    page: PageNumber = 0,
    output: Output = Format.TABLE,
) -> None:
    """List jobs, newest first."""
    with find_installation().database(pool_size=1) as db:
        wanted = _filter(status, failure_type, document, worker)
        found = queries.list_jobs(db, wanted, page=page, size=limit)
    show_page(found, JOBS, output)


@app.command("show")
def show_job(job: JobArgument, output: Output = Format.TABLE) -> None:
    """Show a job with its attempts and its history, and what to do if it failed."""
    with find_installation().database(pool_size=1) as db:
        detail = queries.show_job(db, JobId(job))
    if output is Format.NAME:
        print(JOBS.name(detail.job))
    elif output is Format.TABLE:
        show_detail(detail)
    else:
        show_value(detail, output)


@app.command("watch")
def watch_jobs(status: Status = None, document: DocumentOption = None, output: Output = Format.TABLE) -> None:
    """Watch jobs until Ctrl-C: a live table on a terminal, else a line for each change."""
    from docgrid_cli.watching import watch

    with find_installation().database(pool_size=1) as db:
        watch(db, _filter(status, None, document, None), output)


@app.command("retry")
def retry_jobs(
    ids: JobsArgument = None,
    every: All = False,
    failure_type: Failure = None,
    document: DocumentOption = None,
    reason: Reason = "asked for on the command line",
    yes: Yes = False,
) -> None:
    """Give FAILED jobs one more execution: those named, or all that a filter matches."""
    chosen = [_filter(JobStatus.FAILED, failure_type, document, None)]
    _require_choice(ids, by_filter=every or failure_type is not None or document is not None)
    with find_installation().database(pool_size=1) as db:
        change = Change("retry", "retried", lambda job: control.retry(db, job, reason=reason, by=asked_by()))
        change_named(ids, change) if ids else change_matching(db, chosen, change, yes=yes)


@app.command("cancel")
def cancel_jobs(
    ids: JobsArgument = None,
    every: All = False,
    status: LiveStatus = None,
    document: DocumentOption = None,
    worker: WorkerOption = None,
    reason: Reason = "asked for on the command line",
    yes: Yes = False,
) -> None:
    """Cancel PENDING or PROCESSING jobs: those named, or all that a filter matches."""
    states = [JobStatus.PENDING, JobStatus.PROCESSING] if status is None else [JobStatus(status.value)]
    chosen = [_filter(state, None, document, worker) for state in states]
    _require_choice(ids, by_filter=every or any(part is not None for part in (status, document, worker)))
    with find_installation().database(pool_size=1) as db:
        change = Change(
            "cancel", "canceled", lambda job: control.cancel(db, job, reason=reason, by=asked_by())
        )
        change_named(ids, change) if ids else change_matching(db, chosen, change, yes=yes)


def show_detail(detail: JobDetail) -> None:
    """Print a job, its attempts and its history for a person."""
    job = detail.job
    show_facts(f"job {job.id}: {job.status}", _facts(job))
    if detail.attempts:
        print()
        show_table(detail.attempts, ATTEMPTS)
    print()
    show_table(detail.events, EVENTS)


def _facts(job: JobSummary) -> dict[str, object]:
    return {
        "document": f"{job.document_id}, version {job.version_no} ({job.version_status}): {job.title}",
        "source": source_of(job.source_uri),
        "model": job.model,
        "priority": job.priority,
        "worker": job.worker_name if job.status is JobStatus.PROCESSING else None,
        "retries": f"{job.retry_count} of {job.max_retry_count}",
        "created": f"{age(job.created_at)} ago",
        "runs again": _due(job),
        "reason": _reason(job),
        "what to do": _advice(job),
    }


def _advice(job: JobSummary) -> str | None:
    if job.status is not JobStatus.FAILED or job.failure_type is None:
        return None
    return ADVICE[job.failure_type].format(job=job.id)


def _due(job: JobSummary) -> str | None:
    if job.next_retry_at is None:
        return None
    return f"in {span(job.next_retry_at - datetime.now(UTC))}"


def _reason(job: JobSummary) -> str | None:
    return f"{job.error_code}: {job.error_message}" if job.error_code else None


def _state(job: JobSummary) -> str:
    """Return why a job waits, or how far it is."""
    if job.status is JobStatus.PENDING and (due := _due(job)) is not None:
        return f"retry {due}"
    if job.status in JOB_LIVE:
        return job.version_status
    return job.error_code or ""


def _took(attempt: AttemptView) -> str | None:
    return None if attempt.duration_ms is None else f"{attempt.duration_ms / 1000:.1f}s"


def _filter(
    status: JobStatus | None, failure_type: FailureType | None, document: int | None, worker: int | None
) -> JobFilter:
    return JobFilter(
        status=status,
        failure_type=failure_type,
        document_id=None if document is None else DocumentId(document),
        worker_id=None if worker is None else WorkerId(worker),
    )


def _require_choice(ids: list[int] | None, *, by_filter: bool) -> None:
    if bool(ids) == by_filter:
        raise typer.BadParameter("name the jobs by their ids, or choose them with --all or a filter")


JOBS = View[JobSummary](
    columns=[
        Column("ID", lambda job: job.id, right=True),
        Column("STATUS", lambda job: job.status),
        Column("STATE", _state),
        Column("WORKER", lambda job: job.worker_name),
        Column("RETRIES", lambda job: f"{job.retry_count}/{job.max_retry_count}", right=True),
        Column("AGE", lambda job: age(job.created_at), right=True),
        Column("DOCUMENT", lambda job: f"{job.document_id} v{job.version_no}"),
        Column("TITLE", lambda job: job.title, wide=True),
    ],
    name=lambda job: f"job/{job.id}",
    empty="no jobs",
)

ATTEMPTS = View[AttemptView](
    columns=[
        Column("ATTEMPT", lambda row: row.attempt_no, right=True),
        Column("STATUS", lambda row: row.status),
        Column("WORKER", lambda row: f"{row.worker_name} ({row.worker_id})"),
        Column("STARTED", lambda row: age(row.started_at), right=True),
        Column("TOOK", _took, right=True),
        Column("FAILURE", lambda row: row.failure_type),
        Column("REASON", lambda row: row.error_message, wide=True),
    ],
    name=lambda row: f"attempt/{row.id}",
    empty="no attempts",
)

EVENTS = View[EventView](
    columns=[
        Column("AGE", lambda row: age(row.occurred_at), right=True),
        Column("EVENT", lambda row: row.event_type),
        Column("STATUS", lambda row: row.to_status),
        Column("MESSAGE", lambda row: row.message, wide=True),
    ],
    name=lambda row: f"event/{row.id}",
    empty="no events",
)
