"""`make cluster-up` and `make cluster-down`: once is as good as twice, and nothing is left."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from docgrid_cli.local.process import wait_until_ended
from support.cluster.binaries import Binaries
from support.cluster.kubectl import Kubectl
from support.cluster_commands import Commands
from support.races import wait_until


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
    return commands.kubectl


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


def test_a_number_of_nodes_that_is_none_is_refused_in_words(commands: Commands) -> None:
    assert "Error: NODES=two: must be a number of nodes" in commands.run("up", nodes="two", code=1)
