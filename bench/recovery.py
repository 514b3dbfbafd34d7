"""R2: 10,000 leases that expired at once, recovered by one process.

Every job has a running attempt; every tenth has spent its retries in three earlier executions and fails for good,
with its version and its vector, the others become ready again. What is timed is `docgrid_core.maintenance.recover`
with the default batch. Each round works on a fresh copy of the same database; commits wait for the disk.
"""

import contextlib
import statistics
import time
from datetime import timedelta

from bench import rows
from bench.figures import Benchmark, Outcome, Say, below
from bench.servers import APPLICATION, Cluster, cluster
from docgrid_core.database import Database
from docgrid_core.maintenance import recover
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import MaintenanceSettings
from docgrid_core.store import workers
from docgrid_core.testing.factories import register_worker

LEASES = 10_000
ROUNDS = 5
LIMIT_SECONDS = 2.0
_TEMPLATE = "leases"


def measure(say: Say) -> Outcome:
    """Recover the same leases in each round; the median time counts."""
    with cluster(durable=True) as server:
        settings = server.migrated(_TEMPLATE, dimension=8)
        with contextlib.closing(Database(settings, application_name=APPLICATION)) as db:
            worker = register_worker(db, dead_threshold=timedelta(hours=1))
        with server.connect(_TEMPLATE) as connection:
            rows.add_expired(connection, first=1, count=LEASES, worker_id=worker.id)
            rows.settle(connection)
        seconds = [_round(server, number, say) for number in range(1, ROUNDS + 1)]
    figure = below(
        f"{LEASES:,} expired leases recovered",
        statistics.median(seconds),
        unit="s",
        limit=LIMIT_SECONDS,
        note=f"{min(seconds):.2f} to {max(seconds):.2f} s in {ROUNDS} rounds",
    )
    return Outcome([figure], {"seconds": seconds})


def _round(server: Cluster, number: int, say: Say) -> float:
    batch = MaintenanceSettings().batch
    with server.cloned(_TEMPLATE, "round") as name:
        server.checkpoint()
        with contextlib.closing(Database(server.settings(name), application_name=APPLICATION)) as db:
            workers.read_clock(db)  # so that the connection is there
            began = time.perf_counter()
            report = recover(db, limit=batch, policy=RetryPolicy())
            seconds = time.perf_counter() - began
    if report.settled != LEASES or report.failed != LEASES // 10:
        raise RuntimeError(f"recovery did something else: {report}")
    say(f"round {number}: {seconds:.2f} s")
    return seconds


BENCHMARK = Benchmark("R2", "Recovery of expired leases", __doc__, measure)
