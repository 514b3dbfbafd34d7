"""Q1: jobs from claim to finish, through the store and through a bare driver loop that sends the same SQL.

A job here has nothing left to do: its version is EMBEDDING and its one vector is stored. So each costs what the
queue itself costs: claim, attempt, completion, three commits. Both sides run in the same processes and threads:
a worker is a thread with a row and a connection of its own, in up to four processes, because threads of one
Python process compute one at a time. Each side has its own copy of the same database, and all workers change from
one side to the other every second, so that noise hits both. What counts is the pair of turns with the median
ratio. Prepared statements are warm. Commits do not wait for the disk, which would hide what is measured.
"""

import contextlib
import multiprocessing
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import psycopg
from psycopg.types.json import Jsonb
from sqlalchemy import TextClause
from sqlalchemy.engine import make_url

from bench import rows
from bench.figures import Benchmark, Outcome, Say, at_least, median_pair
from bench.servers import APPLICATION, Cluster, cluster
from docgrid_core.database import Database, connect_arguments
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import attempts, claim, complete, events, models, ownership
from docgrid_core.store.workers import RegisteredWorker
from docgrid_core.testing.factories import register_worker

WORKERS = (1, 4, 16, 64)
TARGET = 0.5
_TURNS = 18
_TURN_SECONDS = 1.0
_PROCESSES = 4
_PATIENCE = 120  # seconds for a process to start, on a machine that does much else
_JOBS = 20_000
_TEMPLATE = "jobs"
_WARM_UP = 12  # jobs: the driver prepares a statement when it comes for the sixth time
_LEASE = timedelta(minutes=5)


class Side(Protocol):
    """One way to run jobs."""

    def run_job(self) -> None:
        """Claim, start and complete the next job."""


class DocGrid:
    """The store's own functions, as a worker calls them."""

    def __init__(self, db: Database, worker: RegisteredWorker) -> None:
        self._db = db
        self._worker = worker

    def run_job(self) -> None:
        """Claim, start and complete the next job."""
        (claimed,) = claim.claim(self._db, self._worker, limit=1, lease_duration=_LEASE).claims
        complete.complete(self._db, attempts.start(self._db, claimed).ownership)


class Driver:
    """The same statements in the same three transactions, sent by psycopg alone; it checks nothing."""

    def __init__(self, settings: DatabaseSettings, worker: RegisteredWorker) -> None:
        arguments = connect_arguments(settings, APPLICATION)
        self._connection = psycopg.connect(settings.url.get_secret_value(), autocommit=True, **arguments)
        self._worker = worker

    def run_job(self) -> None:
        """Claim, start and complete the next job."""
        worker = {"worker_id": self._worker.id, "instance_id": self._worker.instance_id}
        claimed = self._one(CLAIM, **worker, limit=1, lease_duration=_LEASE)
        job = {"job_id": claimed[1], "token": claimed[2], "version_id": claimed[3], **worker}
        with self._connection.transaction():
            now = self._one(LOCK_JOB, **job)[-1]
            self._connection.execute(FIND_ATTEMPT, job)
            job["attempt_id"] = self._one(INSERT_ATTEMPT, **job, now=now)[0]
            self._one(READ_VERSION_STATUS, **job)
        with self._connection.transaction():
            self._complete(job)

    def _complete(self, job: dict[str, Any]) -> None:
        locked = self._one(LOCK_JOB, **job)
        values = job | {"model_id": locked[2], "now": locked[-1], "at": locked[-1]}
        self._one(READ_ATTEMPT, **values)
        values["document_id"] = self._one(LOCK_VERSION, **values)[1]
        values["current_version_id"] = values["previous_version_id"] = self._one(LOCK_DOCUMENT, **values)[2]
        values["dimension"] = self._one(MODEL_BY_ID, **values)[4]
        self._one(READ_FAMILY, **values)
        self._one(VERIFY_SET, **values)
        self._connection.execute(SWITCH, values)
        self._connection.execute(INSERT_EVENT, values | _EVENT)

    def _one(self, statement: str, **values: Any) -> Sequence[Any]:
        row: Sequence[Any] | None = self._connection.execute(statement, values).fetchone()
        if row is None:
            raise RuntimeError("a statement of the bare loop found no row")
        return row


def as_sent(statement: TextClause) -> str:
    """Return a statement of the store exactly as SQLAlchemy sends it to the driver."""
    return str(statement.compile(dialect=make_url("postgresql+psycopg://").get_dialect()()))


CLAIM = as_sent(claim.CLAIM)
LOCK_JOB = as_sent(ownership.LOCK_JOB)
FIND_ATTEMPT = as_sent(attempts.FIND_ATTEMPT)
INSERT_ATTEMPT = as_sent(attempts.INSERT_ATTEMPT)
READ_VERSION_STATUS = as_sent(attempts.READ_VERSION_STATUS)
READ_ATTEMPT = as_sent(ownership.READ_ATTEMPT)
LOCK_VERSION = as_sent(ownership.LOCK_VERSION)
LOCK_DOCUMENT = as_sent(ownership.LOCK_DOCUMENT)
MODEL_BY_ID = as_sent(models.BY_ID)
READ_FAMILY = as_sent(complete.READ_FAMILY)
VERIFY_SET = as_sent(complete.VERIFY_SET)
SWITCH = as_sent(complete.SWITCH)
INSERT_EVENT = as_sent(events.INSERT_EVENT)
_EVENT = {
    "event_type": "INDEXED",
    "from_status": "PROCESSING",
    "to_status": "INDEXED",
    "message": None,
    "metadata": Jsonb({"attempt_no": 1}),
}


def measure(say: Say) -> Outcome:
    """Measure every number of workers."""
    with cluster(durable=False) as server:
        server.migrated(_TEMPLATE, dimension=8)
        with server.connect(_TEMPLATE) as connection:
            rows.add_embedded(connection, first=1, count=_JOBS)
            rows.settle(connection)
        pairs = {workers: _measure_workers(server, workers, say) for workers in WORKERS}
    figures = [
        at_least(f"no-op jobs, {workers} workers", *median_pair(pairs[workers]), unit="jobs/s", target=TARGET)
        for workers in WORKERS
    ]
    return Outcome(figures, {"jobs_per_second": {str(workers): pairs[workers] for workers in WORKERS}})


def _measure_workers(server: Cluster, workers: int, say: Say) -> list[tuple[float, float]]:
    """Return jobs/s of DocGrid and of the bare loop, a pair for each two turns."""
    with server.cloned(_TEMPLATE, "docgrid") as ours, server.cloned(_TEMPLATE, "driver") as bare:
        plans = [_plan(server.settings(name), workers) for name in (ours, bare)]
        server.checkpoint()
        rates = _run_processes(plans[0], plans[1])
    pairs = list(zip(rates[::2], rates[1::2], strict=True))
    value, base = median_pair(pairs)
    say(f"{workers} workers: {value:.0f} against {base:.0f} jobs/s")
    return pairs


@dataclass(frozen=True, slots=True)
class Plan:
    """One side's database, and the workers registered in it."""

    settings: DatabaseSettings
    workers: Sequence[RegisteredWorker]

    def share(self, number: int, count: int) -> "Plan":
        """Return the part of one process among `count`."""
        return Plan(self.settings, self.workers[number::count])


def _plan(settings: DatabaseSettings, workers: int) -> Plan:
    with contextlib.closing(Database(settings, application_name=APPLICATION)) as db:
        return Plan(
            settings, [register_worker(db, dead_threshold=timedelta(hours=1)) for _ in range(workers)]
        )


def _run_processes(docgrid: Plan, driver: Plan) -> list[float]:
    """Return the jobs/s of all workers together in each turn."""
    context = multiprocessing.get_context("spawn")
    count = min(_PROCESSES, len(docgrid.workers))
    barrier, results = context.Barrier(count), context.Queue()
    shares = [(docgrid.share(n, count), driver.share(n, count)) for n in range(count)]
    processes = [context.Process(target=_process, args=(*share, barrier, results)) for share in shares]
    for process in processes:
        process.start()
    try:
        parts = [results.get(timeout=_PATIENCE) for _ in processes]
    finally:
        for process in processes:
            process.join(_PATIENCE)
            process.kill()
    return [sum(turn) for turn in zip(*parts, strict=True)]


def _process(docgrid: Plan, driver: Plan, barrier: Any, results: Any) -> None:
    """Run one thread for each worker; put their jobs/s in each turn into `results`."""
    count = len(docgrid.workers)
    db = Database(docgrid.settings, application_name=APPLICATION, pool_size=count)
    warm, go = threading.Barrier(count + 1), threading.Barrier(count + 1)
    rates: queue.SimpleQueue[list[float]] = queue.SimpleQueue()

    def work(number: int) -> None:
        sides = (DocGrid(db, docgrid.workers[number]), Driver(driver.settings, driver.workers[number]))
        for _ in range(_WARM_UP):
            for side in sides:
                side.run_job()
        warm.wait()
        go.wait()
        rates.put(_take_turns(sides))

    for number in range(count):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    warm.wait(_PATIENCE)
    barrier.wait(_PATIENCE)
    go.wait()
    results.put(
        [sum(turn) for turn in zip(*(rates.get(timeout=_PATIENCE) for _ in range(count)), strict=True)]
    )
    db.close()


def _take_turns(sides: Sequence[Side]) -> list[float]:
    """Return one worker's jobs/s in each turn; a job that outlasts its turn counts with all of its time."""
    start = time.monotonic()
    rates = []
    for turn in range(_TURNS):
        began, finished = time.monotonic(), 0
        while time.monotonic() < start + (turn + 1) * _TURN_SECONDS:
            sides[turn % len(sides)].run_job()
            finished += 1
        rates.append(finished / (time.monotonic() - began))
    return rates


BENCHMARK = Benchmark("Q1", "Jobs from claim to finish", __doc__, measure)
