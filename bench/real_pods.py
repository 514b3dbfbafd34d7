"""R1K on Kubernetes: from the end of a busy worker's pod to the next claim of its job.

A real node (containerd, kubelet, kube-proxy) runs the release of the chart and a pool of three workers in containers
with 256 MiB each. Before each kill a document is ingested; the embedding server lets its worker wait, which then ends
in one of three ways in turn. Its pod is deleted by force, timed by the database's clock just before the call; its
memory is used up from within until the kernel kills its process, timed as soon as that process is gone; its process
is killed, timed just before the signal. The next claim is timed by the LOCKED event of the job. Heartbeats and
leases have their defaults (30 s, 5 min), so nothing else explains a claim within seconds. A worker counts as old
enough to be judged (15 s) from its start on: the benchmark dates it back. After each kill a new pod takes the place
of the one that was hit, so that the kubelet's pause before a second restart plays no part.
"""

import os
import select
import signal
from concurrent.futures import ThreadPoolExecutor

from bench import node_release
from bench.figures import Benchmark, Outcome, Say, below, percentile
from docgrid_core.jobs import JobId
from support import tables
from support.races import wait_until
from support.release import Release

WORKERS = 3
KILLS = 24
LIMIT_SECONDS = 3.0
_HOW = ("deleted by force", "out of memory", "killed")
_PATIENCE = 60.0
_CLAIMED_AGAIN = """
    SELECT extract(epoch FROM min(occurred_at) - :killed_at)::float8 FROM indexing_events
    WHERE event_type = 'LOCKED' AND embedding_job_id = :job_id AND occurred_at > :killed_at
"""


def measure(say: Say) -> Outcome:
    """End one busy pod after the other; the job of each counts."""
    seconds: dict[str, list[float]] = {how: [] for how in _HOW}
    with node_release.running(say) as (release, _):
        release.start_workers(WORKERS, resources={"limits": {"memory": "256Mi"}})
        for number in range(KILLS):
            release.age_workers()
            job_id, pod = release.run_one()
            how = _HOW[number % len(_HOW)]
            seconds[how].append(_time_of_claim(release, job_id, pod, how))
            say(f"{how}: {seconds[how][-1]:.2f} s")
            release.finish(job_id)
            _replace(release, pod)
    everyone = [each for some in seconds.values() for each in some]
    figure = below(
        f"{KILLS} pods ended on a real node: job claimed again, p95",
        percentile(everyone, 95),
        unit="s",
        limit=LIMIT_SECONDS,
        note=f"p50 {percentile(everyone, 50):.2f} s, longest {max(everyone):.2f} s",
    )
    return Outcome([figure], {"seconds": seconds})


def _time_of_claim(release: Release, job_id: JobId, pod: str, how: str) -> float:
    killed_at = _end(release, pod, how)
    values = {"killed_at": killed_at, "job_id": job_id}
    wait_until(lambda: tables.value(release.db, _CLAIMED_AGAIN, **values) is not None, limit=_PATIENCE)
    return float(tables.value(release.db, _CLAIMED_AGAIN, **values))


def _end(release: Release, pod: str, how: str) -> object:
    """End a pod's worker and return when, on the database's clock."""
    if how == "out of memory":
        return _exhaust(release, pod)
    killed_at = _now(release)
    if how == "deleted by force":
        release.delete_by_force(pod)
    else:
        release.signal(pod, signal.SIGKILL)
    return killed_at


def _exhaust(release: Release, pod: str) -> object:
    """Let the kernel kill a worker for its memory; return the time at which its process had gone."""
    (pid, *_) = release.node_of(pod).pids_of(release.container_of(pod))
    worker = os.pidfd_open(pid)
    try:
        with ThreadPoolExecutor(1) as pool:
            exhausted = pool.submit(release.exhaust_memory, pod)
            gone, _, _ = select.select([worker], [], [], _PATIENCE)
            now = _now(release)
            exhausted.result()
    finally:
        os.close(worker)
    if not gone:
        raise RuntimeError(f"the worker in {pod} lives")
    return now


def _now(release: Release) -> object:
    return tables.value(release.db, "SELECT clock_timestamp()")


def _replace(release: Release, pod: str) -> None:
    """Have a new pod instead of one that was hit, and wait until all are ready."""
    if any(each["metadata"]["name"] == pod for each in release.pods()):
        release.delete_by_force(pod)
    wait_until(lambda: all(each["metadata"]["name"] != pod for each in release.pods()))
    release.wait_until_ready(WORKERS)


BENCHMARK = Benchmark("R1K", "The job of a pod that ended", __doc__, measure)
