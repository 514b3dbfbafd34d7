"""O2: 100,000 jobs in the queue, twenty of them a second on the move, and 500 views beside them.

66,000 jobs are INDEXED, 30,000 delayed, 4,000 ready with nothing left to do but to complete. For a minute twenty
of these a second are claimed and started, and two seconds later completed, through the store. Twice a second every
view is compared with its job's row: a view that shows another state is as old as the first change of the row that
it does not show yet. What is judged is the oldest view that was ever seen. The views are known from a watch, the
writes from the audit log. Afterwards, when no job has ended for longer than a finished one is shown, the writes of a
minute are counted in which nothing happens to a job. The operator has its default settings: 500 views at most.
"""

import contextlib
import statistics
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta

from bench import operator_release, rows
from bench.figures import Benchmark, Figure, Outcome, Say, below
from bench.operator_release import NAMESPACE, Release
from bench.rows import Connection
from bench.servers import APPLICATION, Cluster, cluster
from docgrid_core.database import Database
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import attempts, claim, complete
from docgrid_core.store.workers import RegisteredWorker
from docgrid_core.testing.factories import register_worker
from docgrid_operator.views import LINGER
from support.cluster.api import Api, Object, Watch
from support.cluster.errors import ApiError

READY, DELAYED, FINISHED = 4_000, 30_000, 66_000
VIEWS = 500
JOBS_PER_SECOND = 20
MOVING_SECONDS = 60.0
STEADY_SECONDS = 60.0
LIMIT_SECONDS = 5.0
LIMIT_WRITES = 50.0
_JOB_SECONDS = 2.0
_SAMPLE_SECONDS = 0.5
_PATIENCE = 120.0
_NAME = "o2"
_VIEWS = f"/apis/docgrid.dev/v1alpha1/namespaces/{NAMESPACE}/indexingjobs"

_STATES = """
    SELECT id, status, extract(epoch FROM clock_timestamp() - locked_at)::float8,
           extract(epoch FROM clock_timestamp() - coalesce(completed_at, locked_at))::float8
    FROM embedding_jobs WHERE id = ANY (%s)
"""


class ShownStates:
    """The state that each view shows, from a watch in a thread of its own."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._watch: Watch | None = None
        self._states: dict[int, str] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the watch."""
        self._stopped.set()
        if self._watch is not None:
            self._watch.stop()
        self._thread.join(10)

    def now(self) -> dict[int, str]:
        """Return the states by job."""
        return self._states.copy()

    def _follow(self) -> None:
        while not self._stopped.is_set():  # the apiserver ends a watch of a kind that was just installed
            with contextlib.suppress(ApiError):
                listed = self._api.get(_VIEWS)
                self._states = {view["spec"]["jobId"]: view["status"]["state"] for view in listed["items"]}
                version = listed["metadata"]["resourceVersion"]
                self._watch = self._api.watch(_VIEWS, seconds=3600, resource_version=version)
                for kind, view in self._watch:
                    if kind == "ERROR":
                        break
                    self._note(kind, view)

    def _note(self, kind: str, view: Object) -> None:
        if kind == "DELETED":
            self._states.pop(view["spec"]["jobId"], None)
        elif kind != "BOOKMARK":
            self._states[view["spec"]["jobId"]] = view["status"]["state"]


class Traffic:
    """Moves jobs through the store until it is stopped, each of them for `_JOB_SECONDS`."""

    def __init__(self, db: Database, worker: RegisteredWorker) -> None:
        self._db = db
        self._worker = worker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.moved = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Complete what is claimed, and end."""
        self._stop.set()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        began, running = time.monotonic(), deque[tuple[float, attempts.Started]]()
        while not self._stop.is_set():
            (claimed,) = claim.claim(
                self._db, self._worker, limit=1, lease_duration=timedelta(hours=1)
            ).claims
            running.append((time.monotonic(), attempts.start(self._db, claimed)))
            while running[0][0] < time.monotonic() - _JOB_SECONDS:
                complete.complete(self._db, running.popleft()[1].ownership)
            self.moved += 1
            self._stop.wait(max(0.0, began + self.moved / JOBS_PER_SECOND - time.monotonic()))
        for _since, started in running:
            complete.complete(self._db, started.ownership)


@dataclass(frozen=True, slots=True)
class Sample:
    """One comparison: how many views there were, how many differed, and the age of the oldest difference."""

    views: int
    differing: int
    oldest: float


def measure(say: Say) -> Outcome:
    """Fill the queue, let the views be written, move jobs, then let nothing happen."""
    with cluster(durable=True) as server:
        settings = _fill(server)
        with (
            server.connect(_NAME) as connection,
            operator_release.running(settings) as release,
            contextlib.closing(ShownStates(release.site.control_plane.api)) as shown,
        ):
            _wait_for_views(shown)
            say(f"{VIEWS} views written")
            mark = release.mark()
            with _traffic(settings) as traffic:
                samples = list(_samples(connection, shown))
            say(f"{traffic.moved} jobs moved in {MOVING_SECONDS:.0f} s")
            moving = _writes_per_second(release, since=mark)
            release.wait_until_quiet(LINGER.total_seconds() + 10, limit=5 * _PATIENCE)
            mark = release.mark()
            cost = release.cost(STEADY_SECONDS)
            steady = len(release.site.writes(since=mark))
    say(f"steady: {steady} writes, {cost.percent:.1f} % of a core, {cost.megabytes:.0f} MB")
    oldest = [sample.oldest for sample in samples]
    shown_note = f"{min(s.views for s in samples)} to {max(s.views for s in samples)} views"
    figures = [
        below(
            "oldest view",
            max(oldest),
            unit="s",
            limit=LIMIT_SECONDS,
            note=f"median of samples {statistics.median(oldest):.2f} s, {shown_note}",
        ),
        below(
            "writes in the busiest second",
            max(moving),
            unit="writes",
            limit=LIMIT_WRITES,
            note=f"mean {statistics.mean(moving):.0f}, {traffic.moved / MOVING_SECONDS:.0f} jobs/s",
        ),
        Figure("writes in a steady minute", str(steady), "", None, "0", steady == 0),
    ]
    return Outcome(figures, {"oldest_seconds": oldest, "writes_per_second": moving})


def _fill(server: Cluster) -> DatabaseSettings:
    settings = server.migrated(_NAME, dimension=8)
    with contextlib.closing(Database(settings, application_name=APPLICATION)) as db:
        worker = register_worker(db, dead_threshold=timedelta(hours=1))
    with server.connect(_NAME) as connection:
        rows.add_embedded(connection, first=1, count=READY)
        rows.add_pending(connection, first=READY + 1, count=DELAYED, delay="1 hour")
        rows.add_finished(connection, first=READY + DELAYED + 1, count=FINISHED, worker_id=worker.id)
        rows.settle(connection)
    return settings


def _wait_for_views(shown: ShownStates) -> None:
    give_up = time.monotonic() + _PATIENCE
    while len(shown.now()) < VIEWS:
        if time.monotonic() > give_up:
            raise RuntimeError(f"only {len(shown.now())} views after {_PATIENCE:.0f} s")
        time.sleep(0.1)


@contextlib.contextmanager
def _traffic(settings: DatabaseSettings) -> Iterator[Traffic]:
    with contextlib.closing(Database(settings, application_name=APPLICATION)) as db:
        traffic = Traffic(db, register_worker(db, dead_threshold=timedelta(hours=1)))
        traffic.start()
        try:
            yield traffic
        finally:
            traffic.stop()


def _samples(connection: Connection, shown: ShownStates) -> Iterator[Sample]:
    end = time.monotonic() + MOVING_SECONDS
    while time.monotonic() < end:
        time.sleep(_SAMPLE_SECONDS)
        states = shown.now()
        ages = [
            since_claim if states[job] == "PENDING" else since_end
            for job, status, since_claim, since_end in connection.execute(_STATES, (list(states),))
            if status != states[job]
        ]
        yield Sample(len(states), len(ages), max(ages, default=0.0))


def _writes_per_second(release: Release, *, since: int) -> Sequence[int]:
    """Return how many writes of views were answered in each second."""
    answered = [
        int(write.answered)
        for write in release.requests(since=since)
        if (write.user, write.resource) == (release.site.user, "indexingjobs")
    ]
    counted = Counter(answered)
    return [counted[second] for second in range(min(answered), max(answered) + 1)]


BENCHMARK = Benchmark("O2", "Views of a long queue", __doc__, measure)
