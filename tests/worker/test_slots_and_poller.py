"""Promises of poller and slots, in this process and on a real database; executions are stubs."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from prometheus_client import REGISTRY

from docgrid_core.database import Database
from docgrid_core.jobs import JobId, StopReason
from docgrid_core.settings import WorkerSettings, load
from docgrid_core.store import claim, workers
from docgrid_core.store.workers import RegisteredWorker
from docgrid_core.testing import factories
from docgrid_worker.errorlog import ErrorLog
from docgrid_worker.leases import Lease, LeaseBook
from docgrid_worker.lifecycle import ExitCode, Lifecycle
from docgrid_worker.poller import Poller
from docgrid_worker.slots import Slots
from support import tables
from support.races import wait_until

LEASE = timedelta(minutes=10)


@dataclass
class Runtime:
    """A poller with its slots; each execution waits for `gate`, then does what `outcome` does."""

    db: Database
    concurrency: int
    outcome: Callable[[Lease], None] = lambda _: None
    settings: dict[str, timedelta] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lifecycle = Lifecycle()
        self.gate = threading.Event()
        self.gate.set()
        self.started: list[JobId] = []
        self.most_at_once = 0
        self.ended = threading.Semaphore(0)
        self._at_once = 0
        self._lock = threading.Lock()
        values = {
            "polling_interval": timedelta(milliseconds=10),
            "idle_max_polling_interval": timedelta(milliseconds=50),
            "lease_duration": LEASE,
            "lease_renewal_interval": LEASE / 2,
            **self.settings,
        }
        settings = load(WorkerSettings, max_concurrency=self.concurrency, **values)
        self.me: RegisteredWorker = factories.register_worker(self.db)
        self.book = LeaseBook(settings.lease_duration)
        self.slots = Slots(self.concurrency, self._execute, self.lifecycle)
        self.poller = Poller(
            self.db,
            self.me,
            settings,
            slots=self.slots,
            book=self.book,
            lifecycle=self.lifecycle,
            errors=ErrorLog(),
        )
        self._thread = threading.Thread(target=self.poller.run)

    def start(self) -> None:
        """Poll from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop polling and let the executions end."""
        self.lifecycle.drain()
        self.poller.wake()
        self.gate.set()
        if self._thread.ident is not None:
            self._thread.join(10)
        assert self.slots.wait_idle(10)

    def free_slots(self) -> int:
        """Return how many slots are free."""
        free = self.slots.reserve()
        self.slots.give_back(free)
        return free

    def _execute(self, lease: Lease) -> None:
        with self._lock:
            self.started.append(lease.claim.job_id)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            self.gate.wait(30)
            self.outcome(lease)
        finally:
            with self._lock:
                self._at_once -= 1
            self.book.free(lease)
            self.ended.release()


@pytest.fixture
def runtimes(db: Database) -> Iterator[Callable[..., Runtime]]:
    """Yield what makes a runtime; each is stopped at the end."""
    made: list[Runtime] = []

    def make(concurrency: int, **options: object) -> Runtime:
        made.append(Runtime(db, concurrency, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for runtime in made:
        runtime.stop()


def skipped(reason: str) -> float:
    """Return how many polls were skipped for a reason so far."""
    return REGISTRY.get_sample_value("docgrid_worker_polls_skipped_total", {"reason": reason}) or 0.0


def locked(db: Database) -> int:
    """Return how many jobs are claimed."""
    return int(tables.value(db, "SELECT count(*) FROM embedding_jobs WHERE status = 'PROCESSING'"))


def add_jobs(db: Database, count: int) -> None:
    """Add jobs by copying one document's rows: faster than registering each."""
    factories.register(db)
    tables.change(
        db,
        """
        WITH new_document AS (
          INSERT INTO documents (source_uri, title, document_type, status)
          SELECT 'copy://' || n, 'copy', 'TXT', 'UPLOADED' FROM generate_series(2, :count) AS n
          RETURNING id
        ), new_version AS (
          INSERT INTO document_versions
            (document_id, version_no, file_object_id, original_filename, content_type, file_hash, status)
          SELECT d.id, 1, v.file_object_id, v.original_filename, v.content_type, v.file_hash, 'UPLOADED'
          FROM new_document d CROSS JOIN (SELECT * FROM document_versions LIMIT 1) AS v
          RETURNING id
        )
        INSERT INTO embedding_jobs (document_version_id, embedding_model_id, status, priority)
        SELECT v.id, m.id, 'PENDING', 0 FROM new_version v CROSS JOIN embedding_models m WHERE m.is_active
        """,
        count=count,
    )


def test_as_many_jobs_are_claimed_as_slots_are_free_and_never_more(
    db: Database, runtimes: Callable[..., Runtime]
) -> None:
    add_jobs(db, 10)
    runtime = runtimes(3)
    runtime.gate.clear()
    before = skipped("no free slot")
    runtime.start()
    wait_until(lambda: len(runtime.started) == 3)
    runtime.poller.wake()
    wait_until(lambda: skipped("no free slot") > before)
    assert locked(db) == len(runtime.book) == runtime.slots.running == 3
    assert runtime.free_slots() == 0
    runtime.gate.set()
    wait_until(lambda: len(runtime.started) == 10)
    assert runtime.most_at_once == 3
    assert len(set(runtime.started)) == 10


def test_a_slot_that_becomes_free_is_filled_while_the_others_run(
    db: Database, runtimes: Callable[..., Runtime]
) -> None:
    add_jobs(db, 3)
    hold = threading.Event()
    first: list[JobId] = []

    def outcome(lease: Lease) -> None:
        first.append(lease.claim.job_id)
        if len(first) == 1:
            hold.wait(30)

    # Nothing but the freed slot wakes the poller.
    runtime = runtimes(2, outcome=outcome, settings={"idle_max_polling_interval": timedelta(hours=1)})
    runtime.start()
    wait_until(lambda: len(runtime.started) == 3)
    assert runtime.slots.running == 1
    hold.set()


def test_slots_and_leases_are_freed_exactly_once_on_every_path_over_10_000_jobs(
    db: Database, runtimes: Callable[..., Runtime]
) -> None:
    add_jobs(db, 10_000)
    chance = random.Random(7)

    def outcome(lease: Lease) -> None:
        path = chance.random()
        if path < 0.3:
            lease.lose()
        elif path < 0.6:
            runtime.poller.wake()

    runtime = runtimes(32, outcome=outcome)
    threads = threading.active_count()
    runtime.start()
    wait_until(lambda: len(runtime.started) >= 10_000)
    runtime.stop()
    assert len(set(runtime.started)) == len(runtime.started) == 10_000
    assert runtime.most_at_once <= 32
    assert runtime.free_slots() == 32
    assert len(runtime.book) == 0
    assert threading.active_count() <= threads + 1


def test_an_execution_that_makes_the_process_unsound_ends_it_without_a_report_and_frees_its_slot(
    db: Database, runtimes: Callable[..., Runtime]
) -> None:
    add_jobs(db, 1)

    def outcome(_: Lease) -> None:
        raise SystemExit(0)

    runtime = runtimes(2, outcome=outcome)
    runtime.start()
    assert runtime.lifecycle.ending.wait(10)
    wait_until(lambda: runtime.free_slots() == 2)
    assert runtime.lifecycle.is_silent()
    assert runtime.lifecycle.exit_code is ExitCode.ERROR
    assert locked(db) == 1
    assert len(runtime.book) == 0


def test_an_empty_queue_is_asked_less_and_less_often(db: Database, runtimes: Callable[..., Runtime]) -> None:
    settings = {
        "polling_interval": timedelta(seconds=1),
        "idle_max_polling_interval": timedelta(seconds=8),
    }
    runtime = runtimes(1, settings=settings)
    before = skipped("empty queue")
    waits = [runtime.poller.poll_once() for _ in range(6)]
    for wait, longest in zip(waits, [1, 2, 4, 8, 8, 8], strict=True):
        assert longest / 2 <= wait <= longest
    assert skipped("empty queue") == before + 6
    assert runtime.free_slots() == 1


def test_an_empty_poll_writes_nothing(db: Database, runtimes: Callable[..., Runtime]) -> None:
    runtime = runtimes(1)
    before = tables.dump(db)
    runtime.poller.poll_once()
    assert tables.dump(db) == before


def test_the_poller_never_sleeps_past_the_next_delayed_job_and_makes_it_ready(
    db: Database, runtimes: Callable[..., Runtime]
) -> None:
    add_jobs(db, 1)
    tables.change(
        db, "UPDATE embedding_jobs SET next_retry_at = clock_timestamp() + interval '700 milliseconds'"
    )
    settings = {
        "polling_interval": timedelta(hours=1),
        "idle_max_polling_interval": timedelta(hours=1),
    }
    runtime = runtimes(1, settings=settings)
    assert runtime.poller.poll_once() <= 0.7
    runtime.start()
    wait_until(lambda: len(runtime.started) == 1, limit=10)


def test_a_worker_that_may_not_claim_goes_on_asking_and_gives_its_slots_back(
    db: Database, runtimes: Callable[..., Runtime]
) -> None:
    add_jobs(db, 1)
    runtime = runtimes(2)
    tables.silence(db, runtime.me.id)
    before = skipped("error")
    runtime.poller.poll_once()
    assert skipped("error") == before + 1
    assert runtime.free_slots() == 2
    assert locked(db) == 0
    assert not runtime.lifecycle.ending.is_set()
    workers.heartbeat(db, runtime.me, running_jobs=0)
    runtime.start()
    wait_until(lambda: len(runtime.started) == 1)


def test_a_stopped_or_dead_worker_never_claims_again(db: Database, runtimes: Callable[..., Runtime]) -> None:
    add_jobs(db, 1)
    runtime = runtimes(1)
    tables.change(
        db,
        "UPDATE worker_nodes SET status = 'DEAD', stop_reason = :reason, stopped_at = clock_timestamp()",
        reason=StopReason.ERROR,
    )
    runtime.poller.poll_once()
    assert locked(db) == 0


def test_jobs_that_the_worker_does_not_know_are_released_before_it_claims_again(
    db: Database, runtimes: Callable[..., Runtime]
) -> None:
    add_jobs(db, 2)
    runtime = runtimes(2, settings={"lease_renewal_interval": timedelta(milliseconds=1)})
    unknown = claim.claim(db, runtime.me, limit=1, lease_duration=LEASE).claims[0].job_id
    runtime.gate.clear()
    runtime.start()
    wait_until(lambda: len(runtime.started) == 2)
    assert tables.events(db, unknown)[-3:] == ["LOCKED", "RELEASED", "LOCKED"]
    assert tables.job(db, unknown).retry_count == 0


def test_a_draining_worker_claims_nothing(db: Database, runtimes: Callable[..., Runtime]) -> None:
    add_jobs(db, 1)
    runtime = runtimes(1)
    runtime.lifecycle.drain()
    runtime.poller.run()
    assert locked(db) == 0
