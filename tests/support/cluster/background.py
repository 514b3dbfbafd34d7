"""Programs of the cluster and images, made beside the tests that do not need them: a cold build takes minutes.

`fixtures` starts it when a run begins, waits for it before the first test that needs the programs, and ends it with
the run. It is a process of its own at the lowest priority, `python -m support.cluster prepare`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading

from support.cluster.binaries import Report
from support.layers import TESTS
from support.leaks import MARK

INTERVAL = 10.0
"""Seconds between two lines while somebody waits."""
_LIMIT = 10.0


class Preparation:
    """One such process; `wait` may be called more than once."""

    def __init__(self, *, nodes: bool) -> None:
        """Begin to make the control plane's programs and, if asked for, the nodes' and the images too."""
        # The cache is the machine's, not the run's: neither its temp folder nor its mark.
        environment = {key: value for key, value in os.environ.items() if key not in ("TMPDIR", MARK)}
        self._child = subprocess.Popen(
            [
                "nice",
                "-n",
                "19",
                sys.executable,
                "-m",
                "support.cluster",
                "prepare",
                *(["2"] if nodes else []),
            ],
            cwd=TESTS,
            env={**environment, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._last_line = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait(self, report: Report) -> None:
        """Return when it has ended, well or not: `binaries.prepare` then finds the programs, or says what is wrong."""
        while self._reader.is_alive():
            self._reader.join(INTERVAL)
            if self._reader.is_alive():
                report(self._last_line)
        self._child.wait()

    def stop(self) -> None:
        """End it if it still runs; what it had begun to make goes with it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGINT)
        try:
            self._child.wait(_LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()
        self._reader.join()
        assert self._child.stdout is not None
        self._child.stdout.close()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._last_line = line.strip()
