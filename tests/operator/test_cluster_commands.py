"""`make cluster-up` and `make cluster-down`: once is as good as twice, and nothing is left."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from docgrid_cli.local.home import holder
from docgrid_cli.local.process import wait_until_ended
from support.cluster.binaries import Binaries
from support.cluster.kubectl import Kubectl
from support.layers import TESTS
from support.races import wait_until

LIMIT = 90


class Commands:
    """The two commands, for a user whose home is the test's."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "docgrid-cluster"
        self._environment = {**os.environ, "DOCGRID_HOME": str(home / "docgrid"), "PYTHONPATH": str(TESTS)}

    def run(self, command: str) -> str:
        """Run one and return what it said; an exit code that is not 0 fails the test."""
        done = subprocess.run(
            [sys.executable, "-m", "support.cluster", command],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def server(self) -> psutil.Process:
        """Return the process that holds the cluster."""
        held = holder(self.folder)
        process = held.find() if held is not None else None
        assert process is not None
        return process


@pytest.fixture
def commands(cluster_binaries: Binaries, tmp_path: Path) -> Iterator[Commands]:
    """Yield the commands; at the end nothing of the cluster is left."""
    made = Commands(tmp_path)
    yield made
    made.run("down")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def kubectl(commands: Commands) -> Kubectl:
    """Return kubectl as the lines that `cluster-up` prints make it."""
    run = commands.folder / "run"
    return Kubectl(run / "bin" / "kubectl", run / "admin.kubeconfig")


def test_a_cluster_is_up_until_it_is_taken_down(commands: Commands, kubectl: Kubectl) -> None:
    said = commands.run("up")
    assert f"export KUBECONFIG={kubectl.kubeconfig}" in said
    assert f"export PATH={kubectl.program.parent}:$PATH" in said
    server = commands.server()
    assert "the cluster runs already" in commands.run("up")
    assert commands.server() == server
    assert "indexingworkers.docgrid.dev" in kubectl("get", "crds", "-o", "name").out
    commands.run("down")
    assert wait_until_ended([server], limit=5) == []
    assert "nothing of the cluster is left" in commands.run("down")


def test_what_a_killed_cluster_left_is_ended(commands: Commands, kubectl: Kubectl) -> None:
    commands.run("up")
    wait_until(lambda: kubectl.attempt("get", "serviceaccount", "default").code == 0)
    kubectl("run", "sleeper", "--image=none", "--command", "--", "sleep", "1000")
    kubectl("wait", "--for=condition=Ready", "pod/sleeper", "--timeout=60s")
    server = commands.server()
    parts = server.children(recursive=True)
    assert {"etcd", "kube-apiserver", "sleep"} <= {part.name() for part in parts}
    server.kill()
    commands.run("down")
    assert wait_until_ended(parts, limit=5) == []
