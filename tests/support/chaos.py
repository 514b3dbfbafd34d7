"""A chaos run: documents come, change and go while everything below them fails; at the end all must be right.

The chaos test runs it for a minute, `DOCGRID_CHAOS_SECONDS=600` for as long as one likes, and by hand:
`PYTHONPATH=tests python -m support.chaos --documents 1000 --workers 4 --kill-every 2`.
"""

import argparse
import contextlib
import random
import secrets
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from docgrid_cli.local.postgres import EmbeddedPostgres
from docgrid_core.database import Database
from docgrid_core.errors import Busy, DatabaseUnavailable, DocumentNotFound, VersionInProgress
from docgrid_core.jobs import DocumentId
from docgrid_core.maintenance import Maintenance, MaintenanceLoop, Retention, Watch
from docgrid_core.migrations import migrate
from docgrid_core.settings import DatabaseSettings, MaintenanceSettings, StorageSettings
from docgrid_core.store import documents
from docgrid_core.testing.invariants import SearchViewReader, violations
from support import fake_provider, tables
from support.chaos_faults import LONGEST_FREEZE, Fleet, Schedule, crash_database, cut_connections
from support.fake_provider import FakeProvider
from support.races import wait_until
from support.servers import embedded_postgres, s3_server
from support.site import QUICK_RETRY, Site, builtin_site, fake_site

SETTINGS = {
    "worker_heartbeat_interval": "500ms",
    "worker_dead_threshold": "3s",
    "worker_lease_duration": "15s",
    "worker_lease_renewal_interval": "1s",
    "worker_polling_interval": "200ms",
    "worker_idle_max_polling_interval": "1s",
}
MARK = "chaos-text"
"""A word of every document: it may be in no log."""

SETTLE_LIMIT = 120.0
"""Seconds after the last fault within which every job must have ended."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done to the installation; intervals are means in seconds, 0 is never."""

    seed: int
    seconds: float
    documents: int
    workers: int = 3
    kill_every: float = 3.0
    freeze_every: float = 7.0
    cut_every: float = 3.0
    fault_every: float = 4.0
    crash_database_at: float = 0.4  # part of the run; 0 is never
    changes: bool = True
    broken: float = 0.05  # part of the documents that are broken on purpose
    builtin_model: bool = False


class Library:
    """The documents of a run and what they must say in the end."""

    def __init__(self, site: Site, chance: random.Random, plan: Plan) -> None:
        self._site = site
        self._plan = plan
        self._chance = chance
        self.expected: dict[str, str] = {}
        self.broken: set[str] = set()
        self.counts: Counter[str] = Counter()

    def add(self) -> None:
        """Register a new document, unless there are enough; some are broken on purpose."""
        if self.counts["added"] == self._plan.documents:
            return
        name = f"chaos-{self.counts['added']}"
        self.counts["added"] += 1
        if self._chance.random() < self._plan.broken:
            self.broken.add(name)
            self._register(name, b"\xff\xfe\xfd broken", supersede=False)
            return
        self._write(name, supersede=False)

    def change(self) -> None:
        """Give a document new content, superseding what is in flight or refused because of it."""
        if self.expected:
            self._write(self._chance.choice(sorted(self.expected)), supersede=self._chance.random() < 0.7)
            self.counts["changed"] += 1

    def delete(self) -> None:
        """Delete a document."""
        if not self.expected:
            return
        name = self._chance.choice(sorted(self.expected))
        with contextlib.suppress(DocumentNotFound):  # the answer to the first try was lost
            patiently(lambda: documents.delete(self._site.db, self._find(name), reason="chaos", by="chaos"))
        del self.expected[name]
        self.counts["deleted"] += 1

    def is_settled(self) -> bool:
        """Tell whether no job is left to do."""
        with contextlib.suppress(DatabaseUnavailable, Busy):
            return not tables.value(
                self._site.db,
                "SELECT EXISTS (SELECT FROM embedding_jobs WHERE status IN ('PENDING', 'PROCESSING'))",
            )
        return False

    def require_indexed(self) -> None:
        """Require that search shows exactly what each document says now, and that only broken ones failed."""
        rows = tables.fetch(
            self._site.db,
            """
            SELECT d.source_uri, d.status, string_agg(c.chunk_text, '' ORDER BY c.chunk_index) AS text
            FROM documents d LEFT JOIN document_chunks c ON c.document_version_id = d.current_version_id
            WHERE d.deleted_at IS NULL GROUP BY d.id
            """,
        )
        found = {row.source_uri.removeprefix("test://"): (row.status, row.text) for row in rows}
        indexed = {name: ("INDEXED", text) for name, text in self.expected.items()}
        wanted = indexed | dict.fromkeys(self.broken, ("FAILED", None))
        names = found.keys() | wanted.keys()
        wrong = {n: (found.get(n), wanted.get(n)) for n in names if found.get(n) != wanted.get(n)}
        assert wrong == {}, "what is there, and what should be"

    def _write(self, name: str, *, supersede: bool) -> None:
        body = f"{MARK} {name} {self._chance.getrandbits(64):x}"
        if self._register(name, body.encode(), supersede=supersede):
            self.expected[name] = body

    def _register(self, name: str, body: bytes, *, supersede: bool) -> bool:
        source = self._site.source(body, name=name)
        try:
            patiently(lambda: documents.register(self._site.db, source, supersede=supersede, by="chaos"))
        except VersionInProgress:
            return False
        return True

    def _find(self, name: str) -> DocumentId:
        return DocumentId(
            tables.value(
                self._site.db,
                "SELECT id FROM documents WHERE source_uri = :uri ORDER BY id DESC LIMIT 1",
                uri=f"test://{name}",
            )
        )


def run(plan: Plan, *, server: EmbeddedPostgres, storage: StorageSettings, folder: Path) -> Counter[str]:
    """Run a plan and return what happened how often; raises `AssertionError` for whatever is wrong at the end."""
    print(f"chaos: {plan}")
    settings = DatabaseSettings.model_validate({"url": server.url()})
    migrate(settings)
    with FakeProvider() as provider, _site(plan, settings, storage, provider, folder) as site:
        provider.latency = 0.03
        chance = random.Random(plan.seed)
        fleet = Fleet(site, plan.workers, chance)
        library = Library(site, chance, plan)
        schedule = _schedule(plan, fleet, library, provider, server)
        with _maintenance(settings), _reader(settings) as reader:
            _drive(plan, schedule, fleet, library)
            wait_until(library.is_settled, limit=SETTLE_LIMIT)
            fleet.drain()
        counts = fleet.counts + library.counts + _executions(site)
        counts["looks at the search view"] = reader.looks
        print(f"chaos: {dict(counts)}")
        assert reader.violations == set()
        assert violations(site.db) == []
        library.require_indexed()
        assert not any(MARK in worker.output() for worker in site.workers)
    return counts


def patiently(call: Callable[[], T], *, limit: float = 60.0) -> T:
    """Repeat a call while the database is away, as a person would."""
    give_up = time.monotonic() + limit
    while True:
        try:
            return call()
        except (DatabaseUnavailable, Busy):
            if time.monotonic() > give_up:
                raise


def _schedule(
    plan: Plan, fleet: Fleet, library: Library, provider: FakeProvider, server: EmbeddedPostgres
) -> Schedule:
    chance = fleet.chance
    schedule = Schedule(chance)

    def freeze() -> None:
        victim = fleet.freeze_one()
        schedule.after(chance.uniform(0.2, LONGEST_FREEZE), victim.thaw)

    def fail_provider() -> None:
        provider.plan(chance.choice([fake_provider.status(500), fake_provider.reset_midway]))
        fleet.counts["provider faults"] += 1

    if plan.changes:
        pace = plan.seconds / plan.documents
        schedule.every(pace, library.add)
        schedule.every(pace * 2, library.change)
        schedule.every(pace * 8, library.delete)
    schedule.every(plan.kill_every, fleet.kill_one)
    schedule.every(plan.freeze_every, freeze)
    schedule.every(plan.cut_every, lambda: cut_connections(fleet.site, fleet.counts))
    schedule.every(0 if plan.builtin_model else plan.fault_every, fail_provider)
    if plan.crash_database_at:
        at = plan.seconds * plan.crash_database_at
        schedule.after(at, lambda: crash_database(server, fleet.counts))
    return schedule


def _drive(plan: Plan, schedule: Schedule, fleet: Fleet, library: Library) -> None:
    """Let faults happen for the plan's time, or without changes until every job has ended."""
    if not plan.changes:
        for _ in range(plan.documents):
            library.add()
    end = time.monotonic() + plan.seconds
    pause = threading.Event()
    while time.monotonic() < end and (plan.changes or not library.is_settled()):
        fleet.fill()
        schedule.run_due()
        pause.wait(0.02)
    fleet.thaw()
    for _ in range(plan.documents):
        library.add()
    fleet.fill()


def _executions(site: Site) -> Counter[str]:
    rows = tables.fetch(
        site.db,
        "SELECT concat_ws(' ', 'attempts', status, failure_type) AS name, count(*) AS number"
        " FROM embedding_job_attempts GROUP BY 1",
    )
    return Counter({row.name: row.number for row in rows})


@contextlib.contextmanager
def _site(
    plan: Plan, settings: DatabaseSettings, storage: StorageSettings, provider: FakeProvider, folder: Path
) -> Iterator[Site]:
    made = (
        builtin_site(settings, storage, folder=folder)
        if plan.builtin_model
        else fake_site(settings, storage, provider, folder=folder)
    )
    with made as site:
        site.settings |= SETTINGS
        # Chance alone hits some job more often than the usual three times: what is broken fails at once all the same.
        tables.change(site.db, "ALTER TABLE embedding_jobs ALTER COLUMN max_retry_count SET DEFAULT 100")
        yield site


@contextlib.contextmanager
def _maintenance(settings: DatabaseSettings) -> Iterator[None]:
    """Run maintenance as the local stack's supervisor does."""
    db = Database(settings, application_name="docgrid-maintenance")
    own = MaintenanceSettings(retention_interval=timedelta(seconds=10))
    loop = MaintenanceLoop(
        Maintenance(db, own, QUICK_RETRY, Watch(longest_gap=timedelta(seconds=2))),
        Retention(db, own),
        interval=timedelta(milliseconds=500),
    )
    thread = threading.Thread(target=loop.run, name="maintenance")
    thread.start()
    try:
        yield
    finally:
        loop.stop()
        thread.join()
        db.close()


@contextlib.contextmanager
def _reader(settings: DatabaseSettings) -> Iterator[SearchViewReader]:
    db = Database(settings, application_name="docgrid-reader")
    try:
        with SearchViewReader(db) as reader:
            yield reader
    finally:
        db.close()


def main() -> None:
    """Run a plan by hand: without changes, kills go on until every document is INDEXED."""
    options = argparse.ArgumentParser(prog="python -m support.chaos")
    options.add_argument("--seed", type=int, default=secrets.randbits(32))
    options.add_argument("--seconds", type=float, default=900.0)
    options.add_argument("--documents", type=int, default=1000)
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--kill-every", type=float, default=2.0)
    given = options.parse_args()
    plan = Plan(
        **vars(given),
        freeze_every=0,
        cut_every=0,
        crash_database_at=0,
        changes=False,
        broken=0,
        builtin_model=True,
    )
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        embedded_postgres() as server,
        s3_server() as storage,
    ):
        run(plan, server=server, storage=storage, folder=Path(folder))
    print(f"chaos: all right after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
