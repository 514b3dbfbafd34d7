"""What people read: jobs, documents, workers and the queue. Called by the CLI, the operator and later the API.

Every list is one range of an index, every count stops at 10,000, and no answer holds a claim token.
"""

from docgrid_core.store.queries.answers import COUNT_LIMIT, MAX_PAGE_SIZE, Count, Page
from docgrid_core.store.queries.documents import (
    DocumentDetail,
    DocumentSummary,
    VersionView,
    list_documents,
    show_document,
)
from docgrid_core.store.queries.jobs import (
    AttemptView,
    EventView,
    JobDetail,
    JobFilter,
    JobSummary,
    job_ids,
    list_jobs,
    show_job,
)
from docgrid_core.store.queries.pools import PoolCounts, PoolKey, WorkerCounts, pool_counts
from docgrid_core.store.queries.queue import QueueDepth, queue_depth
from docgrid_core.store.queries.views import ViewRow, view_window
from docgrid_core.store.queries.workers import WorkerView, list_workers

__all__ = [
    "COUNT_LIMIT",
    "MAX_PAGE_SIZE",
    "AttemptView",
    "Count",
    "DocumentDetail",
    "DocumentSummary",
    "EventView",
    "JobDetail",
    "JobFilter",
    "JobSummary",
    "Page",
    "PoolCounts",
    "PoolKey",
    "QueueDepth",
    "VersionView",
    "ViewRow",
    "WorkerCounts",
    "WorkerView",
    "job_ids",
    "list_documents",
    "list_jobs",
    "list_workers",
    "pool_counts",
    "queue_depth",
    "show_document",
    "show_job",
    "view_window",
]
