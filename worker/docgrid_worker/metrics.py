"""What a worker counts. No label holds a token, a text, a document's name or anything else without a bound."""

from prometheus_client import Counter, Gauge, Histogram

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
SLOTS_BUSY = Gauge("docgrid_worker_slots_busy", "Slots that run a job")
POLLS_SKIPPED = Counter("docgrid_worker_polls_skipped", "Polls that claimed nothing", ["reason"])
LEASES = Counter("docgrid_worker_lease_renewals", "Renewals of leases", ["outcome"])
HEARTBEATS = Counter("docgrid_worker_heartbeats", "Heartbeats", ["outcome"])
