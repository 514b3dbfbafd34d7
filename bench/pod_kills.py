"""R1 on Kubernetes: from the end of a busy worker's pod to the next claim of its job.

A real control plane with a stand-in node runs the operator, at its default intervals, and a pool of three workers,
which are real processes. Before each kill a document is ingested; the embedding server lets its worker wait, which
then ends in one of three ways in turn: its pod is deleted by force, its container is reported to be out of memory,
its process is killed. The kill is timed by the database's clock just before it, the next claim by the LOCKED event
of the job. Heartbeats and leases have their defaults (30 s, 5 min), so nothing else explains a claim within
seconds. A worker counts as old enough to be judged (15 s) from its start on: the benchmark dates it back.
"""

import contextlib
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import operator_release
from bench.figures import Benchmark, Outcome, Say, below, percentile
from bench.servers import cluster
from docgrid_core.jobs import JobId
from support import tables
from support.cluster.fixtures import stand_in_node
from support.fake_provider import FakeProvider
from support.races import wait_until
from support.real_pools import Pools
from support.servers import s3_server
from support.site import fake_site

WORKERS = 3
KILLS = 24
LIMIT_SECONDS = 3.0
_HOW = ("deleted by force", "out of memory", "killed")
_CLAIMED_AGAIN = """
    SELECT extract(epoch FROM min(occurred_at) - :killed_at)::float8 FROM indexing_events
    WHERE event_type = 'LOCKED' AND embedding_job_id = :job_id AND occurred_at > :killed_at
"""


@contextlib.contextmanager
def running_pools() -> Iterator[Pools]:
    """Yield a release with three idle workers; nothing of it remains afterwards."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        settings = stack.enter_context(cluster(durable=True)).migrated("pools", dimension=8)
        release = stack.enter_context(operator_release.running(settings)).site
        node = stack.enter_context(stand_in_node(release.control_plane))
        provider = stack.enter_context(FakeProvider())
        storage = stack.enter_context(s3_server())
        documents = stack.enter_context(fake_site(settings, storage, provider, folder=folder))
        pools = Pools(release, documents, node, provider)
        stack.callback(provider.gate.set)
        pools.start(WORKERS)
        yield pools


def measure(say: Say) -> Outcome:
    """End one busy pod after the other; the job of each counts."""
    seconds: list[float] = []
    with running_pools() as pools:
        for number in range(KILLS):
            pools.age_workers()
            job_id, pod = pools.run_one()
            how = _HOW[number % len(_HOW)]
            seconds.append(_time_of_claim(pools, job_id, pod, how))
            say(f"{how}: {seconds[-1]:.2f} s")
            pools.finish(job_id)
            pools.wait_until_ready(WORKERS)
    figure = below(
        f"{KILLS} pods ended: job claimed again, p95",
        percentile(seconds, 95),
        unit="s",
        limit=LIMIT_SECONDS,
        note=f"p50 {percentile(seconds, 50):.2f} s, longest {max(seconds):.2f} s",
    )
    return Outcome([figure], {"seconds": seconds})


def _time_of_claim(pools: Pools, job_id: JobId, pod: str, how: str) -> float:
    killed_at = tables.value(pools.release.db, "SELECT clock_timestamp()")
    namespace = pools.release.namespace
    if how == "deleted by force":
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        pools.release.control_plane.api.delete(path, {"gracePeriodSeconds": 0})
    elif how == "out of memory":
        pools.node.report_oom(pod, namespace)
    else:
        pools.node.kill(pod, namespace, signal.SIGKILL)
    values = {"killed_at": killed_at, "job_id": job_id}
    wait_until(lambda: tables.value(pools.release.db, _CLAIMED_AGAIN, **values) is not None, limit=60)
    return float(tables.value(pools.release.db, _CLAIMED_AGAIN, **values))


BENCHMARK = Benchmark("R1K", "The job of a pod that ended", __doc__, measure)
