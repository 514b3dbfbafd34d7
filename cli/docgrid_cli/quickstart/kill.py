"""Killing a worker that certainly runs a job, told by the database."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.keepers import RunningWorker
from docgrid_core.database import Database
from docgrid_core.jobs import JobStatus, VersionStatus
from docgrid_core.store.queries import JobFilter, JobSummary, list_jobs, show_job

_INTERVAL = 0.02  # seconds


@dataclass(frozen=True)
class Kill:
    """A worker that was killed, the job that it was embedding, and everything else that it held."""

    worker: RunningWorker
    job: JobSummary
    held: tuple[JobSummary, ...]
    at: datetime


def kill_in_mid_job(
    db: Database,
    running: Callable[[], list[RunningWorker]],
    *,
    title: str,
    limit: float,
    announce: Callable[[Kill], None],
) -> Kill:
    """Kill the worker that embeds the document called `title`, as soon as one does, within `limit` seconds.

    It is frozen first: so the job can not end between the look into the database and the kill. `announce` is told
    just before the kill.
    """
    give_up_at = time.monotonic() + limit
    while time.monotonic() < give_up_at:
        job = _find_embedding(db, title)
        worker = next((worker for worker in running() if job and worker.name == job.worker_name), None)
        if job is not None and worker is not None:
            with _frozen(worker.pid):
                job = show_job(db, job.id).job
                if _is_embedding(job, title) and job.worker_id is not None:
                    held = list_jobs(db, JobFilter(status=JobStatus.PROCESSING, worker_id=job.worker_id))
                    kill = Kill(worker, job, held.items, datetime.now(UTC))
                    announce(kill)
                    os.kill(worker.pid, signal.SIGKILL)
                    return kill
        time.sleep(_INTERVAL)
    raise LocalStackError(f"no worker was seen embedding {title} within {limit:g} s: nothing was killed")


def _find_embedding(db: Database, title: str) -> JobSummary | None:
    running = list_jobs(db, JobFilter(status=JobStatus.PROCESSING)).items
    return next((job for job in running if _is_embedding(job, title)), None)


def _is_embedding(job: JobSummary, title: str) -> bool:
    return (job.status, job.version_status, job.title) == (
        JobStatus.PROCESSING,
        VersionStatus.EMBEDDING,
        title,
    )


@contextlib.contextmanager
def _frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
