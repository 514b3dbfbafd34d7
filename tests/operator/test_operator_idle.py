"""An operator that has nothing to do: two minutes at the intervals of an installation, without one write."""

import time
from itertools import cycle
from typing import Any

import pytest

from docgrid_core.testing import factories
from support.namespace_objects import build_pool
from support.operator_site import OperatorSite, default_intervals
from support.races import wait_until

POOLS = 30
MINUTES = 2
QUIET = 12.0
"""Seconds without a write after which all is as it should be: longer than any interval but the resync's."""
VARIETY: list[dict[str, Any]] = [
    {"replicas": 0},
    {"replicas": 2},  # there is no node for its pods: they stay Pending
    {"replicas": 1, "suspend": True},
    {"replicas": 0, "model": {"name": "nobody-has-it"}},
    {"replicas": 0, "disruptionBudget": {"minAvailable": "50%"}},
]


def wait_until_quiet(site: OperatorSite) -> None:
    mark, since = site.control_plane.audit.mark(), time.monotonic()

    def is_quiet() -> bool:
        nonlocal mark, since
        if site.writes(since=mark):
            mark, since = site.control_plane.audit.mark(), time.monotonic()
        return time.monotonic() - since > QUIET

    wait_until(is_quiet)


@pytest.mark.timeout(60 * MINUTES + 180)
def test_two_idle_minutes_pass_without_a_write(site: OperatorSite) -> None:
    operator = site.start_ready(**default_intervals())
    names = [f"pool-{number:02}" for number in range(POOLS)]
    site.kubectl.apply(*(build_pool(name, **spec) for name, spec in zip(names, cycle(VARIETY), strict=False)))
    job_id = factories.register(site.db).job_id
    wait_until(lambda: all(site.is_reconciled(name) for name in names))
    wait_until(lambda: site.get("indexingjob", f"job-{job_id}") is not None)
    site.kubectl("label", "deployment", "pool-00", "team=search")  # somebody else's, found and left alone
    wait_until_quiet(site)
    mark, lines = site.control_plane.audit.mark(), len(operator.lines())
    resyncs = operator.rounds("resync")
    time.sleep(60 * MINUTES)
    assert site.writes(since=mark) == []
    assert operator.rounds("resync") >= resyncs + MINUTES - 1
    assert operator.lines()[lines:] == []
    assert "team" in (site.get("deployment", "pool-00") or {})["metadata"]["labels"]
