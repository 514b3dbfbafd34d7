"""A whole process under test: one of our entry points as a child, its log, its end.

Everything that a test waits for is a line of the log, an object, a row or the end of the process.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from support.races import wait_until

Line = Mapping[str, Any]


class LoggedProcess:
    """One running process. Its log is read from a file, as a log collector does."""

    def __init__(self, module: str, environment: Mapping[str, str], *, log: Path) -> None:
        self._log = log
        with log.open("wb") as stream:
            self._child = subprocess.Popen(
                [sys.executable, "-m", module],
                env={**_inherited(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code (-N: ended by signal N), or None while the process runs."""
        return self._child.poll()

    def output(self) -> str:
        """Return everything that the process has written."""
        return self._log.read_text()

    def lines(self, event: str = "") -> list[Line]:
        """Return its log lines, or those of one event; a line that is no JSON object fails the test."""
        whole, _, _ = self.output().rpartition("\n")
        lines = [json.loads(line) for line in whole.splitlines()]
        return [line for line in lines if event in ("", line["event"])]

    def wait_for_line(self, event: str, *, count: int = 1) -> Line:
        """Return the `count`-th line of an event, once it is there."""

        def there() -> bool:
            if len(self.lines(event)) >= count:
                return True
            assert self.exit_code is None, f"the process ended with {self.exit_code}: {self.output()}"
            return False

        wait_until(there)
        return self.lines(event)[count - 1]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._child.send_signal(number)

    def drain(self) -> None:
        """Ask the process to end, as the kubelet does."""
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and wait until it is reaped; one that has ended stays as it is."""
        self._child.kill()
        self._child.wait(30)

    def freeze(self) -> None:
        """Stop the process, and wait until it stands still."""
        self.signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(self.pid).status() == psutil.STATUS_STOPPED)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        self.signal(signal.SIGCONT)

    def wait(self, limit: float = 30) -> int:
        """Wait for the end of the process and return its exit code."""
        return self._child.wait(limit)


def _inherited() -> dict[str, str]:
    """Return our environment without settings of components: those come from the test alone."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("DOCGRID_WORKER", "DOCGRID_OPERATOR"))
    }
