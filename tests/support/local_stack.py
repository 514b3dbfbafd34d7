"""What the tests of the local stack wait for: its events, and conditions of processes that are not ours."""

import threading
import time
from collections.abc import Callable

from docgrid_cli.local.events import EventKind, StackEvent


class EventLog:
    """A reporter that keeps every event and lets a test wait for one."""

    def __init__(self) -> None:
        self.events: list[StackEvent] = []
        self._arrived = threading.Condition()

    def __call__(self, event: StackEvent) -> None:
        """Take one event from the stack."""
        with self._arrived:
            self.events.append(event)
            self._arrived.notify_all()

    def wait_for(self, kind: EventKind, part: str, *, count: int = 1, timeout: float = 30) -> StackEvent:
        """Return the `count`-th event of this kind and part, once it is there."""

        def found() -> list[StackEvent]:
            return [event for event in self.events if (event.kind, event.part) == (kind, part)]

        with self._arrived:
            assert self._arrived.wait_for(lambda: len(found()) >= count, timeout), self.events
            return found()[count - 1]


def wait_until(condition: Callable[[], bool], *, timeout: float = 10) -> None:
    """Return once `condition` holds: for what nothing tells us, such as the end of somebody else's child."""
    give_up = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < give_up, "the condition never held"
        time.sleep(0.02)
