"""Telling a person what happens while it happens: lines with a time, and one line below them that is rewritten.

Used by `up`, `down` and `quickstart`, from several threads. In a log there are only the lines.
"""

import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Self

from rich.status import Status
from rich.text import Text

from docgrid_cli.local.events import EventKind, StackEvent
from docgrid_cli.terminal import console, printable

_STYLES = {
    EventKind.READY: "green",
    EventKind.ENDED: "bold red",
    EventKind.UNRESPONSIVE: "bold red",
    EventKind.FAILED: "red",
}


def time_of_day() -> str:
    """Return the time on the wall."""
    return datetime.now().astimezone().strftime("%H:%M:%S")


def stopwatch() -> Callable[[], str]:
    """Return a clock that counts seconds from now."""
    start = time.monotonic()
    return lambda: f"{time.monotonic() - start:5.1f}s"


class Narrator:
    """Tells to standard output for as long as the `with` block runs; `clock` says what each line begins with."""

    def __init__(self, clock: Callable[[], str] = time_of_day) -> None:
        self._console = console()
        self._clock = clock
        self._status = Status("", console=self._console) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.status("")

    def tell(self, text: str, style: str = "") -> None:
        """Say what has just happened."""
        self._console.print(
            Text(f"{self._clock()}  ", style="dim"), Text(printable(text), style=style), sep=""
        )
        self._console.file.flush()

    def tell_event(self, event: StackEvent) -> None:
        """Say what happened to a part of the local stack."""
        pid = f" (pid {event.pid})" if event.pid is not None and "(pid" not in event.text else ""
        self.tell(event.text + pid, _STYLES.get(event.kind, ""))

    def headline(self, text: str) -> None:
        """Begin a new part of the story."""
        self._console.print()
        self._console.print(text, style="bold")
        self._console.file.flush()

    def plain(self, text: str = "") -> None:
        """Print text as it is."""
        self._console.print(text)
        self._console.file.flush()

    def status(self, text: str) -> None:
        """Show how things stand at this moment, on a terminal; an empty text takes the line away."""
        if self._status is None:
            return
        if text:
            self._status.update(text)
            self._status.start()
        else:
            self._status.stop()
