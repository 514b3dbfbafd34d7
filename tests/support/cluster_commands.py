"""`make cluster-up` and `make cluster-down` as a person calls them, for tests: in a home of the test's own."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from docgrid_cli.local.home import holder
from support.cluster.kubectl import Kubectl
from support.layers import TESTS

LIMIT = 90
LIMIT_WITH_NODES = 300
"""Seconds in which a command has come back."""


class Commands:
    """The two commands, for a user whose home is the test's."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "docgrid-cluster"
        self._environment = {**os.environ, "DOCGRID_HOME": str(home / "docgrid"), "PYTHONPATH": str(TESTS)}

    @property
    def kubectl(self) -> Kubectl:
        """Kubectl as the lines that `cluster-up` prints make it."""
        run = self.folder / "run"
        return Kubectl(run / "bin" / "kubectl", run / "admin.kubeconfig")

    def run(self, command: str, *, nodes: int | str = 0, code: int = 0) -> str:
        """Run one and return what it said; another exit code than `code` fails the test."""
        return self._run(
            "support.cluster", command, str(nodes), code=code, limit=LIMIT_WITH_NODES if nodes else LIMIT
        )

    def make_image(self) -> str:
        """Run `make image` and return what it said."""
        return self._run("support.image", limit=LIMIT_WITH_NODES)

    def _run(self, module: str, *arguments: str, code: int = 0, limit: float) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def server(self) -> psutil.Process:
        """Return the process that holds the cluster."""
        held = holder(self.folder)
        process = held.find() if held is not None else None
        assert process is not None
        return process
