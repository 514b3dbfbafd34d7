"""O1: 500 IndexingWorkers, from `kubectl apply` to their Deployments, and what the operator costs beside them.

A control plane without nodes and an operator with default settings. One `kubectl apply` of one file creates 500
IndexingWorkers with `replicas: 0`, so that no pods are made which have no node to run on, some twenty a second if
the machine lets kubectl. A pool's time is from when the apiserver received its creation to when it answered the
operator's creation of the Deployment, both read from the audit log. All of it shares the cores. Then, once
everything is quiet, two minutes in which nothing happens: what the operator writes, its share of a core, and
its resident memory.
"""

import time

import yaml

from bench import operator_release
from bench.figures import Benchmark, Figure, Outcome, Say, below, percentile
from bench.operator_release import Release
from bench.servers import cluster
from support.cluster.control_plane import ADMIN
from support.namespace_objects import build_pool

POOLS = 500
IDLE_SECONDS = 120.0
LIMIT_SECONDS = 1.0
LIMIT_PERCENT = 5.0
LIMIT_MEGABYTES = 250.0
_QUIET = 20.0
_PATIENCE = 300.0


def measure(say: Say) -> Outcome:
    """Apply the pools, then look at the idle operator."""
    with (
        cluster(durable=True) as server,
        operator_release.running(server.migrated("o1", dimension=8)) as release,
    ):
        seconds = _apply(release, say)
        release.wait_until_quiet(_QUIET, limit=_PATIENCE)
        mark = release.mark()
        cost = release.cost(IDLE_SECONDS)
        writes = [write for write in release.requests(since=mark) if write.user == release.site.user]
    say(f"idle: {len(writes)} writes, {cost.percent:.1f} % of a core, {cost.megabytes:.0f} MB")
    p95 = percentile(seconds, 95)
    note = f"p50 {percentile(seconds, 50):.2f} s, longest {max(seconds):.2f} s"
    figures = [
        below(f"{POOLS} pools: apply to Deployment, p95", p95, unit="s", limit=LIMIT_SECONDS, note=note),
        Figure(
            "idle operator, writes",
            f"{len(writes)} in {IDLE_SECONDS:.0f} s",
            "",
            None,
            "0",
            not writes,
        ),
        below("idle operator, CPU", cost.percent, unit="% of a core", limit=LIMIT_PERCENT),
        below("idle operator, memory", cost.megabytes, unit="MB", limit=LIMIT_MEGABYTES),
    ]
    return Outcome(figures, {"seconds": seconds})


def _apply(release: Release, say: Say) -> list[float]:
    """Create all pools; return the seconds from each one's creation to its Deployment's."""
    names = [f"pool-{number:03}" for number in range(POOLS)]
    mark, began = release.mark(), time.monotonic()
    pools = [build_pool(name, replicas=0, model={"name": "bench"}) for name in names]
    release.site.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(pools), limit=_PATIENCE)
    say(f"applied in {time.monotonic() - began:.1f} s")
    created: dict[str, float] = {}
    while len(created) < POOLS:
        if time.monotonic() - began > _PATIENCE:
            raise RuntimeError(f"only {len(created)} Deployments after {_PATIENCE:.0f} s")
        time.sleep(1)
        requests = release.requests(since=mark)
        asked = {
            one.name: one.received
            for one in requests
            if (one.user, one.resource) == (ADMIN, "indexingworkers")
        }
        created = {}
        for one in requests:
            if (one.user, one.resource) == (release.site.user, "deployments"):
                created.setdefault(one.name, one.answered)
    return [created[name] - asked[name] for name in names]


BENCHMARK = Benchmark("O1", "500 pools, and an idle operator", __doc__, measure)
