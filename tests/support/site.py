"""One installation under test: database, object store, embedding provider, documents and any number of workers.

The worker tests and the chaos runs drive it; maintenance runs when they say so.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from sqlalchemy.engine import make_url

from docgrid_core.database import Database
from docgrid_core.jobs import DocumentType, JobId, JobStatus
from docgrid_core.maintenance import Maintenance, TickReport, Watch
from docgrid_core.records import Registration
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings, MaintenanceSettings, StorageSettings
from docgrid_core.store import documents, models, search
from docgrid_core.store.documents import Source
from docgrid_pipeline.objects import ObjectStore
from support import fake_provider, tables
from support.fake_provider import FakeProvider
from support.proxy import Proxy
from support.races import wait_until
from support.worker_process import WorkerProcess, settings_of_worker

QUICK_RETRY = RetryPolicy(timedelta(milliseconds=100), timedelta(seconds=1))
_TYPES = {".txt": DocumentType.TXT, ".md": DocumentType.MD, ".html": DocumentType.HTML}


class Site:
    """What a test sees of the installation; `settings` are those of every worker that it starts."""

    def __init__(
        self, database: DatabaseSettings, storage: StorageSettings, *, folder: Path, settings: dict[str, str]
    ) -> None:
        self.database = database
        self.storage = storage
        self.settings = settings
        self.db = Database(database, application_name="docgrid-tests")
        self.objects = ObjectStore(storage)
        self.objects.ensure_bucket()
        self.workers: list[WorkerProcess] = []
        self._folder = folder
        self._numbers = itertools.count(1)
        self.maintenance = Maintenance(
            self.db, MaintenanceSettings(), QUICK_RETRY, Watch(longest_gap=timedelta(hours=1))
        )

    def close(self) -> None:
        """Kill what still runs and close every connection."""
        for worker in self.workers:
            worker.kill()
        self.objects.close()
        self.db.close()

    def start(self, **overrides: str) -> WorkerProcess:
        """Start a worker with the site's settings and `overrides`."""
        # A killed worker may leave a temporary file behind: with the rest of the test's.
        chosen = {"tmpdir": str(self._folder), **self.settings, **overrides}
        settings = settings_of_worker(self.database, self.storage, **chosen)
        worker = WorkerProcess(settings, log=self._folder / f"worker-{next(self._numbers)}.log")
        self.workers.append(worker)
        return worker

    def through(self, network: Proxy) -> dict[str, str]:
        """Return the override that lets a worker reach the database through `network`."""
        url = make_url(self.database.url.get_secret_value()).set(host="127.0.0.1", port=network.port)
        return {"database_url": url.render_as_string(hide_password=False)}

    def start_registered(self, **overrides: str) -> WorkerProcess:
        """Start a worker and wait until it is registered."""
        worker = self.start(**overrides)
        worker.wait_for_line("worker registered")
        return worker

    def source(
        self, body: str | bytes, *, name: str = "", suffix: str = ".txt", title: str = "", priority: int = 0
    ) -> Source:
        """Upload a document and return what to register."""
        name = name or f"document-{next(self._numbers)}"
        path = self._folder / f"{name}{suffix}"
        path.write_bytes(body.encode() if isinstance(body, str) else body)
        item = self.objects.put(path, content_type="", max_size=50_000_000)
        return Source(f"test://{name}", title or name, _TYPES[suffix], item, priority)

    def ingest(
        self, body: str | bytes, *, name: str = "", suffix: str = ".txt", title: str = "", priority: int = 0
    ) -> JobId:
        """Upload and register a document; return its job."""
        source = self.source(body, name=name, suffix=suffix, title=title, priority=priority)
        return job_of(documents.register(self.db, source))

    def register_missing(self, body: str = "never uploaded") -> JobId:
        """Register a document whose object was never uploaded."""
        source = self.source(body)
        item = replace(source.object, key=f"missing/{source.object.sha256}")
        return job_of(documents.register(self.db, replace(source, object=item)))

    def network_to_database(self) -> Proxy:
        """Return a proxy in front of the database, not entered yet."""
        url = make_url(self.database.url.get_secret_value())
        return Proxy((str(url.host), url.port or 5432))

    def tick(self) -> TickReport:
        """Run maintenance once."""
        return self.maintenance.run_once()

    def tick_until_recovered(self, count: int = 1) -> None:
        """Run maintenance until `count` jobs were taken back."""
        left = count

        def recovered() -> bool:
            nonlocal left
            left -= self.tick().recovered.settled
            return left <= 0

        wait_until(recovered)

    def status(self, job_id: JobId) -> str:
        """Return the state of a job."""
        return str(tables.job(self.db, job_id).status)

    def wait_for(self, job_id: JobId, *statuses: JobStatus) -> None:
        """Wait until the job is in one of these states."""
        try:
            wait_until(lambda: self.status(job_id) in statuses)
        except TimeoutError:
            logs = "\n".join(worker.output() for worker in self.workers)
            raise AssertionError(f"job {job_id} is {self.status(job_id)}, not {statuses}\n{logs}") from None

    def wait_indexed(self, *job_ids: JobId) -> None:
        """Wait until the jobs are INDEXED."""
        for job_id in job_ids:
            self.wait_for(job_id, JobStatus.INDEXED)

    def worker_waits_for_lock(self) -> bool:
        """Tell whether a worker's session waits for a lock in the middle of a statement."""
        return bool(
            tables.value(
                self.db,
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND wait_event_type = 'Lock' AND application_name LIKE 'docgrid-worker %'",
            )
        )

    def find(self, text: str, *, top_k: int = 50) -> list[str]:
        """Return the chunks that search shows for a text, with the fake provider's vectors."""
        model = models.active_model(self.db)
        vector = fake_provider.vector_of(text)
        return [hit.chunk_text for hit in search.search(self.db, model, vector, top_k=top_k)]


def job_of(registration: Registration) -> JobId:
    """Return the job of a registration, which must have one."""
    assert registration.job_id is not None
    return registration.job_id


@contextmanager
def fake_site(
    database: DatabaseSettings, storage: StorageSettings, provider: FakeProvider, *, folder: Path
) -> Iterator[Site]:
    """Yield a site whose model is the fake provider's."""
    settings = {"embedding_provider": "openai", "embedding_base_url": provider.base_url}
    yield from _site(
        database, storage, folder, settings, ("openai", fake_provider.MODEL, fake_provider.DIMENSION)
    )


@contextmanager
def builtin_site(database: DatabaseSettings, storage: StorageSettings, *, folder: Path) -> Iterator[Site]:
    """Yield a site whose model is the real one of the `wordllama` wheel, in the workers' own process."""
    settings = {"embedding_provider": "builtin"}
    yield from _site(database, storage, folder, settings, ("builtin", "wordllama", 256))


def _site(
    database: DatabaseSettings,
    storage: StorageSettings,
    folder: Path,
    settings: dict[str, str],
    model: tuple[str, str, int],
) -> Iterator[Site]:
    site = Site(database, storage, folder=folder, settings=settings)
    provider, name, dimension = model
    try:
        models.add(site.db, provider=provider, name=name, version="1", dimension=dimension, config={})
        models.activate(site.db, name)
        yield site
    finally:
        site.close()
