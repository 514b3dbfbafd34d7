"""A release with real workers: an operator, a stand-in node, documents, and an embedding server that can let them wait.

The tests of pools drive it.
"""

from typing import Any

from docgrid_core.jobs import JobId
from support import fake_provider, tables
from support.cluster.stand_in_node import StandInNode
from support.fake_provider import FakeProvider
from support.operator_site import OperatorSite
from support.races import wait_until
from support.site import Site

PROMISE = 10.0
"""Seconds within which a job goes on, generously: the promise is 3 for 95 of 100."""


class Pools:
    """A release whose operator runs, a store of documents and an embedding server; pools are made of real workers."""

    def __init__(
        self, release: OperatorSite, documents: Site, node: StandInNode, provider: FakeProvider
    ) -> None:
        self.release = release
        self.documents = documents
        self.node = node
        self.provider = provider
        release.kubectl("create", "secret", "generic", "storage", *self._keys())

    def _keys(self) -> list[str]:
        storage = self.documents.storage
        return [
            f"--from-literal=access-key={storage.access_key.get_secret_value()}",
            f"--from-literal=secret-key={storage.secret_key.get_secret_value()}",
        ]

    def make_database_secret(self) -> None:
        """Create the Secret that every pool needs."""
        url = self.release.database.url.get_secret_value()
        self.release.kubectl("create", "secret", "generic", "database", f"--from-literal=url={url}")

    def apply(self, replicas: int, **spec: Any) -> None:
        """Apply the pool."""
        self.release.apply_pool(
            replicas=replicas,
            **{
                "model": {"name": fake_provider.MODEL},
                "embedding": {"provider": "openai", "baseUrl": self.provider.base_url},
                "storage": {
                    "endpoint": self.documents.storage.endpoint,
                    "secure": False,
                    "secretRef": {"name": "storage"},
                },
                "concurrency": 1,
                **spec,
            },
        )

    def start(self, replicas: int, **spec: Any) -> None:
        """Apply the pool, wait until its workers are ready, and let them be old enough to be judged."""
        self.make_database_secret()
        self.apply(replicas, **spec)
        self.wait_until_ready(replicas)
        self.age_workers()

    def age_workers(self) -> None:
        """Let every worker be old enough to be judged by its pod."""
        tables.change(
            self.release.db, "UPDATE worker_nodes SET started_at = started_at - interval '1 minute'"
        )

    def wait_until_ready(self, replicas: int) -> None:
        """Wait until the pool has so many ready workers and no others."""

        def is_ready() -> bool:
            status = (self.release.get("indexingworker") or {}).get("status") or {}
            return (status.get("readyReplicas"), status.get("replicas")) == (replicas, replicas)

        wait_until(is_ready, limit=60)

    def run_one(self) -> tuple[JobId, str]:
        """Ingest a document and return its job and the pod that holds it; the embedding server lets it wait."""
        self.provider.gate.clear()
        job_id = self.documents.ingest("a text to be embedded")
        wait_until(lambda: tables.attempts(self.release.db, job_id) and self.holder(job_id))
        return job_id, self.holder(job_id)

    def holder(self, job_id: JobId) -> str:
        """Return the pod whose worker holds the job; empty if none does."""
        found = tables.fetch(
            self.release.db,
            "SELECT w.pod_name FROM embedding_jobs j JOIN worker_nodes w ON w.id = j.locked_by_worker_id"
            " WHERE j.id = :id AND j.status = 'PROCESSING'",
            id=job_id,
        )
        return str(found[0][0]) if found else ""

    def wait_for_another(self, job_id: JobId, attempt: int = 2) -> None:
        """Wait until the job has been claimed again."""
        wait_until(lambda: len(tables.attempts(self.release.db, job_id)) >= attempt, limit=PROMISE)

    def finish(self, *job_ids: JobId) -> None:
        """Let the embedding server answer, and wait until the jobs are INDEXED."""
        self.provider.gate.set()
        self.documents.wait_indexed(*job_ids)

    def retries(self, job_id: JobId) -> int:
        """Return the retries that the job has spent."""
        return int(tables.job(self.release.db, job_id).retry_count)

    def ends(self) -> set[str]:
        """Return why workers have ended."""
        rows = tables.fetch(
            self.release.db, "SELECT stop_reason FROM worker_nodes WHERE stop_reason IS NOT NULL"
        )
        return {str(row[0]) for row in rows}
