"""Telling what happens to the jobs of the quickstart, in plain words, as it happens."""

import time
from collections.abc import Collection

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.narrator import Narrator
from docgrid_cli.quickstart.kill import Kill
from docgrid_core.database import Database
from docgrid_core.errors import Busy, DatabaseUnavailable
from docgrid_core.jobs import JOB_LIVE, EventType, JobId, JobStatus
from docgrid_core.store.queries import (
    EventView,
    JobDetail,
    JobFilter,
    JobSummary,
    list_jobs,
    list_workers,
    show_job,
)

_INTERVAL = 0.1  # seconds
_PAGE = 500


class Onlooker:
    """Looks at some jobs again and again, and tells each change once."""

    def __init__(self, db: Database, narrator: Narrator, jobs: Collection[JobId]) -> None:
        self._db = db
        self._narrator = narrator
        self._jobs = frozenset(jobs)
        self._told: set[JobId] = set()
        self._kill: Kill | None = None
        self._last_event = 0

    def kill_follows(self, kill: Kill) -> None:
        """Tell the kill that comes next, and from now on what becomes of the jobs that the worker held."""
        self._kill = kill
        self._last_event = max(event.id for job in kill.held for event in show_job(self._db, job.id).events)
        self._narrator.tell(
            f"{kill.worker.name} embeds {kill.job.title} (job {kill.job.id}) at this moment:"
            f" kill -9 {kill.worker.pid}",
            "bold red",
        )

    def watch_until_ended(self, *, limit: float) -> None:
        """Tell what happens until every job has ended; raises `LocalStackError` after `limit` seconds."""
        give_up_at = time.monotonic() + limit
        while True:
            try:
                if self._look():
                    return
            except (Busy, DatabaseUnavailable) as error:
                self._narrator.tell(str(error), "red")
            if time.monotonic() > give_up_at:
                raise LocalStackError(f"the jobs have not ended within {limit:g} s")
            time.sleep(_INTERVAL)

    def _look(self) -> bool:
        if self._kill is not None:
            self._tell_recovery(self._kill)
        jobs = [job for job in list_jobs(self._db, JobFilter(), size=_PAGE).items if job.id in self._jobs]
        for job in reversed(jobs):
            if job.status not in JOB_LIVE and job.id not in self._told:
                self._told.add(job.id)
                self._tell_end(job)
        running = [f"{job.worker_name}: {job.title}" for job in jobs if job.status is JobStatus.PROCESSING]
        self._narrator.status(f"{self._count()} documents done   {', '.join(sorted(running))}")
        return self._told == self._jobs

    def _tell_end(self, job: JobSummary) -> None:
        if job.status is JobStatus.INDEXED:
            self._narrator.tell(f"{job.title} is searchable ({self._count()})", "green")
        else:
            self._narrator.tell(
                f"{job.title} is {job.status} ({self._count()}): {job.error_message}", "yellow"
            )

    def _count(self) -> str:
        return f"{len(self._told)} of {len(self._jobs)}"

    def _tell_recovery(self, kill: Kill) -> None:
        details = [show_job(self._db, job.id) for job in kill.held]
        found = [(event, detail) for detail in details for event in detail.events]
        for event, detail in sorted(found, key=lambda pair: pair[0].id):
            if event.id > self._last_event:
                self._last_event = event.id
                self._tell_event(kill, event, detail)

    def _tell_event(self, kill: Kill, event: EventView, detail: JobDetail) -> None:
        job = f"job {detail.job.id} ({detail.job.title})"
        later = f"{(event.occurred_at - kill.at).total_seconds():.1f} s after the kill"
        if event.event_type is EventType.LEASE_EXPIRED:
            self._narrator.tell(f"{job} is recovered {later}: it is ready again", "bold")
        elif event.event_type is EventType.RELEASED:
            self._narrator.tell(f"{job} had not been started: it is given back {later}", "bold")
        elif event.event_type is EventType.LOCKED:
            earlier = sum(attempt.started_at < event.occurred_at for attempt in detail.attempts)
            worker = self._name(event.metadata.get("worker_id"))
            if worker == kill.worker.name:
                worker = f"the new {worker}"
            self._narrator.tell(f"{job} is claimed by {worker} {later}: attempt {earlier + 1}", "bold")

    def _name(self, worker_id: object) -> str:
        found = {worker.id: worker.name for worker in list_workers(self._db)}
        return next((name for known, name in found.items() if known == worker_id), "a worker")
