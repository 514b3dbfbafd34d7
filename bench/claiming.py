"""Q2: the time of a claim in a long queue and in a short one.

The long queue has a million ready jobs in ten priorities, a million finished ones and 100,000 delayed ones; the
short one a thousand ready jobs and nothing else. Both lie on one server. One worker claims one job at a time, in
turn from the short and from the long queue, so that noise hits both. Between the rounds, untimed, the claimed
jobs are finished and as many new ones registered, so neither queue gets shorter; then both are vacuumed as
autovacuum would do it. Commits do not wait for the disk: its delays are the same for any queue.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from bench import rows
from bench.figures import Benchmark, Outcome, Say, at_most, percentile
from bench.servers import APPLICATION, Cluster, cluster
from docgrid_core.database import Database
from docgrid_core.store import claim
from docgrid_core.store.workers import RegisteredWorker
from docgrid_core.testing.factories import register_worker

SHORT = 1_000
LONG = 1_000_000
DELAYED = 100_000
ROUNDS = 40
CLAIMS = 100
TARGET = 1.5
PERCENTS = (50, 75, 90, 95, 99, 99.9)
_LEASE = timedelta(minutes=5)
_FILL_STEP = 250_000
_WARM_UP = 2  # rounds

_FINISH = """
    UPDATE embedding_jobs SET status = 'INDEXED', completed_at = locked_at WHERE status = 'PROCESSING'
"""


@dataclass
class Queue:
    """One database with its queue, and the worker that claims from it."""

    name: str
    connection: rows.Connection
    db: Database
    worker: RegisteredWorker
    next_id: int = 1

    def fill(self, *, ready: int, finished: int = 0, delayed: int = 0) -> None:
        """Add jobs, and leave the tables as autovacuum would."""
        for count in _steps(finished):
            rows.add_finished(self.connection, first=self._take(count), count=count, worker_id=self.worker.id)
        for count in _steps(delayed):
            rows.add_pending(self.connection, first=self._take(count), count=count, delay="1 second")
        for count in _steps(ready):
            rows.add_pending(self.connection, first=self._take(count), count=count)
        rows.settle(self.connection)

    def claim_one(self) -> float:
        """Claim a job; return the milliseconds that it took."""
        began = time.perf_counter()
        answer = claim.claim(self.db, self.worker, limit=1, lease_duration=_LEASE)
        taken = time.perf_counter() - began
        if len(answer.claims) != 1:
            raise RuntimeError(f"nothing was ready in the {self.name} queue")
        return taken * 1000

    def replace_claimed(self) -> None:
        """Finish what was claimed in a round, and register as many new jobs."""
        self.connection.execute(_FINISH)
        rows.add_pending(self.connection, first=self._take(CLAIMS), count=CLAIMS)
        self.connection.execute("VACUUM embedding_jobs")

    def _take(self, count: int) -> int:
        first, self.next_id = self.next_id, self.next_id + count
        return first


def measure(say: Say) -> Outcome:
    """Fill both queues, then claim from both in turn."""
    with (
        cluster(durable=False) as server,
        _queue(server, "short") as short,
        _queue(server, "long") as long,
    ):
        short.fill(ready=SHORT)
        say("filling the long queue")
        began = time.perf_counter()
        long.fill(ready=LONG, finished=LONG, delayed=DELAYED)
        server.checkpoint()
        say(f"filled in {time.perf_counter() - began:.0f} s")
        samples: dict[str, list[float]] = {short.name: [], long.name: []}
        for number in range(-_WARM_UP, ROUNDS):
            for _ in range(CLAIMS):
                for queue in (short, long):
                    taken = queue.claim_one()
                    if number >= 0:
                        samples[queue.name].append(taken)
            for queue in (short, long):
                queue.replace_claimed()
            if number >= 0 and number % 10 == 9:
                say(f"{number + 1} of {ROUNDS} rounds")
    levels = {name: [percentile(taken, percent) for percent in PERCENTS] for name, taken in samples.items()}
    figures = [
        at_most(f"claim p{percent}", levels["long"][index], levels["short"][index], unit="ms", target=TARGET)
        for index, percent in enumerate(PERCENTS)
        if percent in {50, 99}
    ]
    return Outcome(figures, {"percents": PERCENTS, "milliseconds": levels, "claims": ROUNDS * CLAIMS})


@contextlib.contextmanager
def _queue(server: Cluster, name: str) -> Iterator[Queue]:
    settings = server.migrated(name, dimension=8)
    with (
        contextlib.closing(Database(settings, application_name=APPLICATION)) as db,
        server.connect(name) as connection,
    ):
        yield Queue(name, connection, db, register_worker(db, dead_threshold=timedelta(hours=6)))


def _steps(count: int) -> Iterator[int]:
    while count > 0:
        yield min(count, _FILL_STEP)
        count -= _FILL_STEP


BENCHMARK = Benchmark("Q2", "Claims in long queues", __doc__, measure)
