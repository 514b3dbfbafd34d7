"""What the local stack tells its host (`up`, `quickstart`) while it works, in plain words."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class EventKind(StrEnum):
    """What happened to a part of the stack."""

    STARTING = "STARTING"
    READY = "READY"
    ENDED = "ENDED"  # by itself or by a kill: never as part of a stop
    UNRESPONSIVE = "UNRESPONSIVE"
    FAILED = "FAILED"  # a try to start or to do something failed; it is repeated
    STOPPING = "STOPPING"
    STOPPED = "STOPPED"


@dataclass(frozen=True)
class StackEvent:
    """One thing that happened; `text` is a whole sentence without a full stop, fit for a person."""

    kind: EventKind
    part: str  # "PostgreSQL", "S3 server", "embedding server", "database", "worker-1", …
    text: str
    pid: int | None = None


Reporter = Callable[[StackEvent], None]


def one_at_a_time(report: Reporter) -> Reporter:
    """Return a reporter that many threads may call: it passes on one event after the other.

    A terminal that is gone, or a full disk behind `report`, loses the event and stops nobody.
    """
    lock = threading.Lock()

    def serialized(event: StackEvent) -> None:
        with lock, contextlib.suppress(OSError):
            report(event)

    return serialized


def ignore(event: StackEvent) -> None:
    """Do nothing: the reporter of a host that does not watch."""
