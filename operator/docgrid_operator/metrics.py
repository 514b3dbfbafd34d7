"""What the operator counts. Labels are names of loops, pools, models and states: all of them few."""

from prometheus_client import Counter, Gauge, Histogram

LOOP_SECONDS = Histogram(
    "docgrid_operator_loop_seconds",
    "Time that a round of a loop took",
    ["loop"],
    buckets=(0.01, 0.05, 0.1, 0.5, 1, 5, 15, 60),
)
LOOP_FAILURES = Counter("docgrid_operator_loop_failures", "Rounds of a loop that failed", ["loop", "error"])
LOOP_SUCCESS_TIME = Gauge(
    "docgrid_operator_loop_last_success_timestamp_seconds", "End of the last good round", ["loop"]
)
RECONCILES = Counter("docgrid_operator_reconciles", "Rounds of one IndexingWorker", ["outcome"])
RECONCILE_SECONDS = Histogram(
    "docgrid_operator_reconcile_seconds",
    "Time that a round of one IndexingWorker took",
    buckets=(0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
)
QUEUE_LENGTH = Gauge("docgrid_operator_workqueue_length", "IndexingWorkers that wait for a round")
API_REQUESTS = Counter("docgrid_operator_api_requests", "Calls of the apiserver", ["verb", "outcome"])
WORKERS_ENDED = Counter("docgrid_operator_workers_ended", "Workers marked ended by the operator", ["reason"])
JOBS_RECOVERED = Counter("docgrid_operator_jobs_recovered", "Jobs taken from ended workers", ["outcome"])
DATABASE_REACHABLE = Gauge("docgrid_operator_database_reachable", "1 while the database answers the operator")
VIEW_WRITES = Counter("docgrid_operator_view_writes", "Writes of IndexingJob views", ["verb"])

QUEUE_JOBS = Gauge(
    "docgrid_queue_jobs",
    "Jobs of a model by state; counts stop at 10,000. What an HPA or KEDA scales on",
    ["model", "model_version", "state"],
)
QUEUE_OLDEST_READY = Gauge(
    "docgrid_queue_oldest_ready_timestamp_seconds",
    "When the job that runs next was created; 0 when none is ready",
    ["model", "model_version"],
)
POOL_WORKERS = Gauge(
    "docgrid_pool_workers", "Workers of an IndexingWorker by state", ["namespace", "indexing_worker", "state"]
)
