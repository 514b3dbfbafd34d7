"""Watching jobs: a live table on a terminal, a line for each change anywhere else.

Called by `docgrid jobs watch`. A database that is away for a while ends nothing: watching goes on when it is back.
"""

import json
import time
from collections.abc import Iterator

from docgrid_cli.commands.jobs import JOBS
from docgrid_cli.render import Format, build_table, plain
from docgrid_cli.terminal import console, printable
from docgrid_core.database import Database
from docgrid_core.errors import Busy, DatabaseUnavailable, DatabaseUnusable, FaultError
from docgrid_core.jobs import JobStatus
from docgrid_core.store.queries import JobFilter, JobSummary, QueueDepth, list_jobs, queue_depth

INTERVAL = 1.0  # seconds
_WINDOW = 500
_FRAME_LINES = 4  # what a live table shows beside its rows


def watch(db: Database, wanted: JobFilter, output: Format) -> None:
    """Show jobs as they change, until interrupted."""
    out = console()
    if out.is_terminal and output is Format.TABLE:
        _watch_live(db, wanted)
    else:
        for job in _changes(db, wanted):
            print(_line(job, output), flush=True)


def _watch_live(db: Database, wanted: JobFilter) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    out = console()
    with Live(console=out, auto_refresh=False) as live:
        while True:
            try:
                rows = _most_interesting(db, wanted, max(1, out.height - _FRAME_LINES))
                shown = Group(Text(_headline(queue_depth(db)), style="bold"), Text(), build_table(rows, JOBS))
            except (Busy, DatabaseUnavailable) as error:
                shown = Group(Text(_lost(error), style="red"))
            live.update(shown, refresh=True)
            time.sleep(INTERVAL)


def _most_interesting(db: Database, wanted: JobFilter, count: int) -> list[JobSummary]:
    """Return what runs, then the newest of the rest."""
    found = {}
    if wanted.status is None:
        running = JobFilter(status=JobStatus.PROCESSING, document_id=wanted.document_id)
        found = {job.id: job for job in list_jobs(db, running, size=min(count, _WINDOW)).items}
    for job in list_jobs(db, wanted, size=min(count, _WINDOW)).items:
        found.setdefault(job.id, job)
    return list(found.values())[:count]


def _headline(queues: list[QueueDepth]) -> str:
    return "   ".join(
        f"{queue.model}: {queue.ready} ready, {queue.delayed} delayed, {queue.processing} processing,"
        f" {queue.failed} failed, {queue.indexed_per_minute:g} indexed a minute"
        for queue in queues
    )


def _changes(db: Database, wanted: JobFilter) -> Iterator[JobSummary]:
    """Yield the newest jobs, oldest first, then each of them again when it changes, and new ones."""
    seen: dict[int, object] = {}
    lost = False
    while True:
        try:
            jobs = list_jobs(db, wanted, size=_WINDOW).items
            lost = False
        except (Busy, DatabaseUnavailable) as error:
            if not lost:
                console().print(_lost(error))
            lost, jobs = True, ()
        for job in reversed(jobs):
            state = (job.status, job.version_status, job.worker_id, job.retry_count)
            if seen.get(job.id) != state:
                seen[job.id] = state
                yield job
        time.sleep(INTERVAL)


def _line(job: JobSummary, output: Format) -> str:
    if output is Format.NAME:
        return JOBS.name(job)
    if output is not Format.TABLE:
        return json.dumps(plain(job), ensure_ascii=False)
    cells = (f"job {job.id}", job.status, job.version_status, job.worker_name or "-", job.title)
    return "  ".join(printable(str(cell)) for cell in cells)


def _lost(error: FaultError) -> str:
    if isinstance(error, DatabaseUnusable):
        raise error
    return f"{error} (tried again until it works)"
