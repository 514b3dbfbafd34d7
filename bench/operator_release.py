"""A release for the benchmarks of the operator: a control plane without nodes, a database, one operator.

The operator runs as an installation's does: a process with the ServiceAccount of `manifests/rbac.yaml`, every
setting at its default. What it and people write is read from the apiserver's audit log, on the apiserver's clock.
"""

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psutil

from bench.servers import scratch_folder
from docgrid_core.settings import DatabaseSettings
from support.cluster import binaries
from support.cluster.control_plane import ControlPlane
from support.cluster.fixtures import create_namespace, install_crds
from support.operator_site import OperatorProcess, OperatorSite, default_intervals

NAMESPACE = "bench"


@dataclass(frozen=True, slots=True)
class Request:
    """One write that succeeded; `received` and `answered` are seconds since the epoch."""

    user: str
    verb: str
    resource: str
    name: str
    received: float
    answered: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process cost while somebody looked: percent of a core, and megabytes resident at the end."""

    percent: float
    megabytes: float


class Release:
    """What a benchmark sees of a release."""

    def __init__(self, site: OperatorSite) -> None:
        self.site = site
        self.operator: OperatorProcess = site.start_ready(**default_intervals())

    def requests(self, *, since: int = 0) -> list[Request]:
        """Return what succeeded since a mark of the audit log."""
        with self.site.control_plane.audit.path.open("rb") as stream:
            stream.seek(since)
            whole, _, _ = stream.read().rpartition(b"\n")
        events = [json.loads(line) for line in whole.splitlines()]
        return [_request(event) for event in events if event.get("responseStatus", {}).get("code", 0) < 300]

    def mark(self) -> int:
        """Return where the audit log ends now."""
        return self.site.control_plane.audit.mark()

    def wait_until_quiet(self, seconds: float, *, limit: float) -> None:
        """Wait until the operator has written nothing for so long."""
        give_up, mark, since = time.monotonic() + limit, self.mark(), time.monotonic()
        while time.monotonic() - since < seconds:
            if time.monotonic() > give_up:
                raise RuntimeError(f"the operator still writes after {limit:.0f} s")
            time.sleep(0.5)
            if self.site.writes(since=mark):
                mark, since = self.mark(), time.monotonic()

    def cost(self, seconds: float) -> Cost:
        """Look at the operator for so long and return what it cost."""
        process = psutil.Process(self.operator.pid)
        before, began = process.cpu_times(), time.monotonic()
        time.sleep(seconds)
        after, ended = process.cpu_times(), time.monotonic()
        used = after.user + after.system - before.user - before.system
        return Cost(100 * used / (ended - began), process.memory_info().rss / 1e6)


@contextlib.contextmanager
def running(database: DatabaseSettings) -> Iterator[Release]:
    """Yield a release with a control plane of its own; nothing of it remains afterwards."""
    made = binaries.prepare(lambda line: print(f"    {line}", flush=True))
    with scratch_folder() as folder:
        (folder / "plane").mkdir()
        plane = ControlPlane(made, folder / "plane")
        plane.start()
        try:
            install_crds(plane.kubectl())
            create_namespace(plane.api, NAMESPACE)
            with contextlib.closing(OperatorSite(plane, NAMESPACE, database, folder=folder)) as site:
                yield Release(site)
        finally:
            plane.stop()


def _request(event: dict[str, Any]) -> Request:
    object_ = event.get("objectRef") or {}
    return Request(
        user=event["user"]["username"],
        verb=event["verb"],
        resource=object_.get("resource", ""),
        name=object_.get("name", ""),
        received=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
        answered=datetime.fromisoformat(event["stageTimestamp"]).timestamp(),
    )
