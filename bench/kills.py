"""R1: from the SIGKILL of a busy worker of the local stack to the next claim of its job.

The whole stack of `docgrid up` runs with three workers, a real S3 server and a real embedding model. Before each
kill three new documents are ingested; as soon as a worker has started one, that worker is killed. The kill is
timed by the database's clock just before the signal, the next claim by the LOCKED event of the job. Other slots
are free, and it is the job's first crash, so nothing but the recovery itself is waited for: the supervisor reaps
the process and marks its worker ended, maintenance takes the job back, a waiting worker is woken and claims it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
from pydantic import SecretStr

from bench.figures import Benchmark, Outcome, Say, below, percentile
from bench.rows import Connection
from bench.servers import APPLICATION, scratch_folder
from docgrid_cli.local.keepers import RunningWorker
from docgrid_cli.local.profile import Profile
from docgrid_cli.local.stack import LocalStack, running
from docgrid_core.database import Database
from docgrid_core.errors import CancelNotAllowed
from docgrid_core.jobs import DocumentType, JobId
from docgrid_core.settings import DatabaseSettings, StorageSettings, load
from docgrid_core.store import control, documents
from docgrid_pipeline.objects import ObjectStore

WORKERS = 3
KILLS = 20
LIMIT_SECONDS = 3.0
_PATIENCE = 60.0
_PARAGRAPHS = 120  # some twenty seconds of the embedding server

_STARTED = """
    SELECT j.id, w.pod_uid
    FROM embedding_jobs j
    JOIN worker_nodes w ON w.id = j.locked_by_worker_id
    JOIN embedding_job_attempts a ON a.claim_token = j.claim_token AND a.status = 'STARTED'
    WHERE j.status = 'PROCESSING' AND j.id = ANY (%s)
    ORDER BY j.id
"""
_CLAIMED_AGAIN = """
    SELECT embedding_job_id, extract(epoch FROM occurred_at - %s)::float8
    FROM indexing_events
    WHERE event_type = 'LOCKED' AND embedding_job_id = ANY (%s) AND occurred_at > %s
"""
_LIVE_WORKERS = "SELECT count(*) FROM worker_nodes WHERE status IN ('ACTIVE', 'IDLE')"


class Site:
    """A running stack, and what the benchmark does to it."""

    def __init__(self, stack: LocalStack, profile: Profile, folder: Path) -> None:
        reach = profile.settings()
        self._stack = stack
        self._folder = folder
        self.db = Database(
            load(DatabaseSettings, url=SecretStr(profile.database_url)), application_name=APPLICATION
        )
        self._objects = ObjectStore(
            load(
                StorageSettings,
                endpoint=reach["DOCGRID_STORAGE_ENDPOINT"],
                secure=False,
                access_key=SecretStr(profile.s3_access_key),
                secret_key=SecretStr(profile.s3_secret_key),
                bucket=reach["DOCGRID_STORAGE_BUCKET"],
            )
        )
        self.connection: Connection = psycopg.connect(profile.database_url, autocommit=True)

    def close(self) -> None:
        """Close the connections."""
        self.connection.close()
        self._objects.close()
        self.db.close()

    def workers(self) -> list[RunningWorker]:
        """Return the worker processes that run now."""
        return self._stack.workers()

    def count(self, query: str) -> int:
        """Return the number that a query counts."""
        row = self.connection.execute(query).fetchone()
        return 0 if row is None else int(row[0])

    def ingest(self, name: str, *, paragraphs: int) -> JobId:
        """Upload and register a new document of so many chunks."""
        path = self._folder / f"{name}.txt"
        path.write_text(
            "\n\n".join(f"{name}, paragraph {n}. " + "All is well. " * 70 for n in range(paragraphs))
        )
        ref = self._objects.put(path, content_type="text/plain", max_size=10_000_000)
        source = documents.Source(f"file:///{name}.txt", name, DocumentType.TXT, ref)
        job_id = documents.register(self.db, source).job_id
        if job_id is None:
            raise RuntimeError("a new document has no job")
        return job_id

    def wait_for_workers(self, count: int) -> None:
        """Wait until `count` workers are registered."""
        wait_for(lambda: self.count(_LIVE_WORKERS) == count, f"{count} workers")

    def kill_owner(self, jobs: Sequence[JobId]) -> list[float]:
        """Kill the worker of the first job that has been started; return when each of its jobs was claimed again.

        Times are seconds after the kill.
        """
        wait_for(lambda: bool(self._started(jobs)), "a started job")
        pod_uid = self._started(jobs)[0][1]
        victim = self._process(pod_uid)
        lost = [job for job, owner in self._started(jobs) if owner == pod_uid]
        (killed_at,) = self.connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
        os.kill(victim.pid, signal.SIGKILL)
        values = (killed_at, lost, killed_at)
        wait_for(
            lambda: len(self.connection.execute(_CLAIMED_AGAIN, values).fetchall()) >= len(lost), "claims"
        )
        times: dict[int, float] = {}
        for job, seconds in self.connection.execute(_CLAIMED_AGAIN, values):
            times[job] = min(seconds, times.get(job, seconds))
        return list(times.values())

    def cancel(self, jobs: Sequence[JobId]) -> None:
        """Cancel what is left of the jobs, so that every kill finds the same stack."""
        for job in jobs:
            with contextlib.suppress(CancelNotAllowed):
                control.cancel(self.db, job, reason="measured", by="bench")

    def _started(self, jobs: Sequence[JobId]) -> list[tuple[JobId, str]]:
        return list(self.connection.execute(_STARTED, (list(jobs),)))

    def _process(self, pod_uid: str) -> RunningWorker:
        return next(worker for worker in self.workers() if worker.pod_uid == pod_uid)


@contextlib.contextmanager
def site(workers: int) -> Iterator[Site]:
    """Yield a fresh local stack; nothing of it remains afterwards."""
    with scratch_folder() as folder:
        stack = LocalStack(folder / "stack", workers=workers)
        with running(stack) as profile, contextlib.closing(Site(stack, profile, folder)) as built:
            built.wait_for_workers(workers)
            yield built


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until `condition` holds."""
    give_up = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise RuntimeError(f"waited {_PATIENCE:.0f} s for {what}")
        time.sleep(0.01)


def measure(say: Say) -> Outcome:
    """Kill one worker after the other; the jobs of each count."""
    seconds: list[float] = []
    with site(WORKERS) as stack:
        for number in range(1, KILLS + 1):
            jobs = [stack.ingest(f"kill-{number}-{letter}", paragraphs=_PARAGRAPHS) for letter in "abc"]
            seconds += stack.kill_owner(jobs)
            stack.cancel(jobs)
            say(f"kill {number}: {seconds[-1]:.2f} s")
            stack.wait_for_workers(WORKERS)
    figure = below(
        f"{KILLS} kills: job claimed again, p95",
        percentile(seconds, 95),
        unit="s",
        limit=LIMIT_SECONDS,
        note=f"p50 {percentile(seconds, 50):.2f} s, longest {max(seconds):.2f} s",
    )
    return Outcome([figure], {"seconds": seconds})


BENCHMARK = Benchmark("R1", "A killed worker's job", __doc__, measure)
