"""What a worker counts. No label holds a token, a text, a document's name or anything else without a bound."""

import time
from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

from docgrid_core.vectors import Vectors
from docgrid_pipeline.embeddings import EmbeddingProvider, Purpose

CLAIMED = Counter("docgrid_worker_jobs_claimed", "Jobs claimed")
FINISHED = Counter("docgrid_worker_jobs_finished", "Executions ended", ["outcome", "failure_type"])
STAGE_SECONDS = Histogram(
    "docgrid_worker_stage_seconds",
    "Time that a stage of a job took",
    ["stage"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300),
)
CLAIM_SECONDS = Histogram(
    "docgrid_worker_claim_seconds",
    "Time that the database took to answer a claim",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
)
QUEUE_WAIT_SECONDS = Histogram(
    "docgrid_worker_queue_wait_seconds",
    "Time from the creation of a job to its claim, earlier executions included",
    buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 1800, 7200),
)
PROVIDER_SECONDS = Histogram(
    "docgrid_worker_provider_seconds",
    "Time that the embedding provider took for the chunks of a document",
    ["outcome"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60, 300),
)
SLOTS_BUSY = Gauge("docgrid_worker_slots_busy", "Slots that run a job")
POLLS_SKIPPED = Counter("docgrid_worker_polls_skipped", "Polls that claimed nothing", ["reason"])
LEASES = Counter("docgrid_worker_lease_renewals", "Renewals of leases", ["outcome"])
HEARTBEATS = Counter("docgrid_worker_heartbeats", "Heartbeats", ["outcome"])


class TimedProvider:
    """An `EmbeddingProvider` that measures another."""

    def __init__(self, provider: EmbeddingProvider) -> None:
        self._provider = provider

    def embed(self, texts: Sequence[str], *, purpose: Purpose) -> Vectors:
        """Pass the call on and observe how long it took, and whether it was answered."""
        started_at = time.monotonic()
        outcome = "failed"
        try:
            vectors = self._provider.embed(texts, purpose=purpose)
            outcome = "answered"
        finally:
            PROVIDER_SECONDS.labels(outcome=outcome).observe(time.monotonic() - started_at)
        return vectors

    def close(self) -> None:
        """Close the provider."""
        self._provider.close()
