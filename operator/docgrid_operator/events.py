"""Kubernetes Events: what `kubectl describe` tells a person, aggregated, so that a storm writes a handful.

Reconciler, loops and views note what happened; a loop writes. What happens to the same object for the same
reason within the window becomes one Event with a count, written at most once an interval.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

import structlog

from docgrid_operator.cluster import ApiUnavailable, Cluster, ClusterError, TooManyRequests
from docgrid_operator.kinds import EVENT, FIELD_MANAGER, Object
from docgrid_operator.loops import note_progress
from docgrid_operator.times import format_time

log = structlog.get_logger(__name__)

WINDOW = 600.0
"""Seconds in which repetitions count up one Event."""
INTERVAL = 5.0
"""Seconds between two writes of one Event."""
MOST_PENDING = 1000
"""Series that are kept at most: beyond it an Event is dropped, never the work that it tells of."""


class EventType(StrEnum):
    """The two types of Events."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(slots=True)
class _Series:
    regarding: Object
    type: EventType
    reason: str
    message: str
    first: datetime
    last: datetime
    count: int = 0
    written: int = 0
    name: str = ""
    written_at: float = field(default=-INTERVAL)


class EventRecorder:
    """Collects Events in memory; `write_due` sends what is due."""

    def __init__(
        self, cluster: Cluster, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._lock = threading.Lock()
        self._series: dict[tuple[str, str], _Series] = {}
        self.wake: Callable[[], None] = lambda: None

    def note(
        self,
        regarding: Object,
        reason: str,
        message: str,
        *,
        type_: EventType = EventType.NORMAL,
        count: int = 1,
    ) -> None:
        """Note that something happened to an object; the newest message of a series is the one shown."""
        now = self._clock()
        key = (regarding["metadata"]["uid"], reason)
        with self._lock:
            series = self._series.get(key)
            if series is None:
                if len(self._series) >= MOST_PENDING:
                    log.warning("an event was dropped", reason=reason)
                    return
                series = self._series[key] = _Series(regarding, type_, reason, message, now, now)
            series.count += count
            series.message = message
            series.last = now
        self.wake()

    def write_due(self) -> None:
        """Write every series that has grown and was not written just now; forget those whose window is over."""
        for key, series in self._take_due():
            note_progress()
            try:
                self._write(series)
            except (ApiUnavailable, TooManyRequests):
                raise
            except ClusterError as error:  # a namespace that is going, an object that is gone
                log.info("an event was not written", reason=series.reason, problem=type(error).__name__)
                with self._lock:
                    self._series.pop(key, None)

    def _take_due(self) -> list[tuple[tuple[str, str], _Series]]:
        now = self._clock()
        with self._lock:
            for key in [k for k, s in self._series.items() if (now - s.first).total_seconds() > WINDOW]:
                if self._series[key].written == self._series[key].count:
                    del self._series[key]
            due = time.monotonic() - INTERVAL
            return [
                (key, series)
                for key, series in self._series.items()
                if series.written < series.count and series.written_at <= due
            ]

    def _write(self, series: _Series) -> None:
        with self._lock:
            count, message, last = series.count, series.message, series.last
        namespace = series.regarding["metadata"].get("namespace", "default")
        if series.name:
            change = {"count": count, "message": message, "lastTimestamp": format_time(last)}
            self._cluster.merge(EVENT, namespace, series.name, change)
        else:
            name = f"{series.regarding['metadata']['name']}.{time.time_ns():x}"
            self._cluster.create(EVENT, _build_event(series, name, count=count, message=message, last=last))
            series.name = name
        series.written = count
        series.written_at = time.monotonic()


def _build_event(series: _Series, name: str, *, count: int, message: str, last: datetime) -> Object:
    metadata = series.regarding["metadata"]
    namespace = metadata.get("namespace", "default")
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {
            "apiVersion": series.regarding["apiVersion"],
            "kind": series.regarding["kind"],
            "name": metadata["name"],
            "namespace": namespace,
            "uid": metadata["uid"],
        },
        "type": str(series.type),
        "reason": series.reason,
        "message": message[:1024],
        "count": count,
        "firstTimestamp": format_time(series.first),
        "lastTimestamp": format_time(last),
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": FIELD_MANAGER,
    }
