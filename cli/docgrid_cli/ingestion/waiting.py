"""Waiting until jobs have ended. Called by `docgrid ingest --wait` and the quickstart."""

import time
from collections.abc import Collection, Iterator

from docgrid_core.database import Database
from docgrid_core.errors import Busy, DatabaseUnavailable, DatabaseUnusable, JobNotFound
from docgrid_core.jobs import JOB_LIVE, JobId
from docgrid_core.store.queries import JobFilter, JobSummary, job_ids, show_job

INTERVAL = 0.5  # seconds


def wait_for_jobs(db: Database, wanted: Collection[JobId]) -> Iterator[JobSummary]:
    """Yield each job once it has ended; one that retention has taken away meanwhile is left out.

    A database that is away is waited for.
    """
    left = set(wanted)
    while left:
        try:
            for job_id in sorted(left - _live(db)):
                job = _read(db, job_id)
                if job is None or job.status not in JOB_LIVE:
                    left.discard(job_id)
                    if job is not None:
                        yield job
        except DatabaseUnusable:
            raise
        except (Busy, DatabaseUnavailable):
            pass  # asked again below
        if left:
            time.sleep(INTERVAL)


def _live(db: Database) -> set[JobId]:
    """Return jobs that have not ended: not all of them when there are very many, or one moves meanwhile."""
    return {job_id for status in JOB_LIVE for job_id in job_ids(db, JobFilter(status=status))}


def _read(db: Database, job_id: JobId) -> JobSummary | None:
    try:
        return show_job(db, job_id).job
    except JobNotFound:
        return None
