"""What goes wrong in a chaos run: workers are killed and frozen, connections cut, PostgreSQL killed.

Every choice comes from the run's seeded generator; only the moments at which things meet are left to chance.
"""

import contextlib
import heapq
import itertools
import os
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from docgrid_cli.local.postgres import EmbeddedPostgres
from docgrid_core.errors import Busy, DatabaseUnavailable
from docgrid_core.jobs import StopReason
from docgrid_core.store import workers
from support import tables
from support.races import wait_until
from support.site import Site
from support.worker_process import WorkerProcess

EXPECTED_ENDS = {0, 75, -signal.SIGKILL}
"""Exit codes of workers that drained, were fenced or killed; any other one is a bug."""

LONGEST_FREEZE = 6.0
"""Seconds: twice the dead-threshold of a chaos run."""

CUT = """
    SELECT pg_terminate_backend(pid) FROM (
      SELECT pid FROM pg_stat_activity
      WHERE datname = current_database() AND application_name LIKE 'docgrid-worker %'
      ORDER BY random() LIMIT 3
    ) AS victims
"""


@dataclass(slots=True)
class Member:
    """One place in the fleet and the process that fills it."""

    process: WorkerProcess
    pod_uid: str


@dataclass
class Fleet:
    """Workers that are replaced when they end, however that was; every other end is told to the database.

    So both ways of recovery happen: by who saw the process end, and by a heartbeat that stays away.
    """

    site: Site
    size: int
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    members: list[Member] = field(default_factory=list)

    def fill(self) -> None:
        """Start what is missing; raises `AssertionError` for an end that nobody caused."""
        for member in list(self.members):
            code = member.process.exit_code
            if code is None:
                continue
            assert code in EXPECTED_ENDS, f"a worker ended with {code}: {member.process.output()[-3000:]}"
            self.counts[f"ended {code}"] += 1
            self.members.remove(member)
            if self.chance.random() < 0.5:
                with contextlib.suppress(DatabaseUnavailable, Busy):
                    workers.mark_pod_ended(self.site.db, pod_uid=member.pod_uid, reason=StopReason.ERROR)
        while len(self.members) < self.size:
            pod_uid = str(uuid.uuid4())
            self.members.append(Member(self.site.start(worker_pod_uid=pod_uid), pod_uid))

    def kill_one(self) -> None:
        """SIGKILL a worker, frozen or not, unless all of them are still starting."""
        started = [member.process for member in self.members if member.process.lines()]
        if started:
            self.chance.choice(started).kill()
            self.counts["killed"] += 1

    def freeze_one(self) -> WorkerProcess:
        """SIGSTOP a worker and return it."""
        victim = self.chance.choice(self.members).process
        if victim.exit_code is None:
            victim.signal(signal.SIGSTOP)
            self.counts["frozen"] += 1
        return victim

    def thaw(self) -> None:
        """Let every frozen worker go on."""
        for member in self.members:
            if member.process.exit_code is None:
                member.process.thaw()

    def drain(self) -> None:
        """Let every worker end by itself; each must have drained, or was fenced before."""
        for member in self.members:
            wait_until(partial(_has_started, member.process))  # before it has, a signal just ends it
            member.process.drain()
        for member in self.members:
            assert member.process.wait(60) in {0, 75}, member.process.output()[-3000:]


def _has_started(process: WorkerProcess) -> bool:
    return process.exit_code is not None or bool(process.lines())


class Schedule:
    """Actions at random times, each with a mean interval in seconds."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something once."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), action))

    def every(self, mean: float, action: Callable[[], object]) -> None:
        """Do something again and again; 0 is never."""

        def again() -> None:
            action()
            self.after(self._chance.expovariate(1 / mean), again)

        if mean > 0:
            self.after(self._chance.expovariate(1 / mean), again)

    def run_due(self) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()


def cut_connections(site: Site, counts: Counter[str]) -> None:
    """End some sessions of workers in the middle of whatever they do."""
    with contextlib.suppress(DatabaseUnavailable, Busy):
        counts["connections cut"] += len(tables.fetch(site.db, CUT))


def crash_database(server: EmbeddedPostgres, counts: Counter[str]) -> None:
    """Kill PostgreSQL with everything that it is about to do, and start it again."""
    assert server.child is not None
    os.kill(server.child.identity.pid, signal.SIGKILL)
    server.child.wait(10)
    server.start()
    counts["database crashed"] += 1
