"""Real nodes are what a pod expects of one, and nothing of them is left on this machine, however they end."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from docgrid_cli.local.process import wait_until_ended
from support.backing import POSTGRES, Backing
from support.cluster.binaries import Binaries
from support.cluster.node_cluster import NodeCluster
from support.cluster_commands import Commands
from support.image.build import Images

pytestmark = pytest.mark.timeout(400)

_REACH = """
import socket
for address in {addresses}:
    socket.create_connection(address, 5).close()
    print("reached", address[0])
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is on this machine that a cluster might leave something in."""

    links: frozenset[str]
    mounts: str
    groups: frozenset[str]
    overcommit: str

    @classmethod
    def look(cls) -> "Machine":
        """Look at it."""
        return cls(
            links=frozenset(psutil.net_if_stats()),
            mounts=Path("/proc/self/mounts").read_text(),
            groups=frozenset(map(str, Path("/sys/fs/cgroup").glob("**/docgrid-*"))),
            overcommit=Path("/proc/sys/vm/overcommit_memory").read_text(),
        )


@pytest.fixture
def commands(cluster_binaries: Binaries, images: Images, tmp_path: Path) -> Iterator[Commands]:
    """Yield the commands; at the end nothing of the cluster is left."""
    before = Machine.look()
    made = Commands(tmp_path)
    yield made
    made.run("down")
    assert list(tmp_path.iterdir()) == []
    assert Machine.look() == before


def test_a_pod_finds_services_by_name_and_the_apiserver_and_kubectl_finds_the_pod(
    backing: Backing, node_cluster: NodeCluster, images: Images
) -> None:
    kubectl = node_cluster.plane.kubectl("backing")
    addresses = [(f"{POSTGRES.name}.backing", POSTGRES.port), ("kubernetes.default", 443), ("10.96.0.1", 443)]
    for node in node_cluster.nodes:
        name, placed = f"visitor-{node.name}", f'{{"spec": {{"nodeName": "{node.name}"}}}}'
        image = (f"--image={images.docgrid.name}", "--image-pull-policy=Never", f"--overrides={placed}")
        kubectl(
            "run", name, *image, "--restart=Never", "--command", "--", "sh", "-c", "echo it runs; sleep 600"
        )
        kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=60s")
        assert kubectl("logs", name).out == "it runs\n"
        said = kubectl("exec", name, "--", "python3", "-c", _REACH.format(addresses=addresses)).out
        assert said.splitlines() == [f"reached {host}" for host, _ in addresses]
        kubectl("delete", "pod", name, "--grace-period=0", "--force")


def test_a_cluster_with_a_real_node_comes_and_goes(commands: Commands) -> None:
    said = commands.run("up", nodes=1)
    assert f"helm install docgrid helm/docgrid --values {commands.folder}/run/values.yaml" in said
    assert "the cluster runs already" in commands.run("up", nodes=1)
    assert "with NODES=1: say make cluster-down first" in commands.run("up", nodes=2, code=1)
    assert " Ready " in commands.kubectl("get", "nodes", "--no-headers").out
    assert "into node-1" in commands.make_image()


def test_what_a_killed_cluster_with_a_real_node_left_is_ended(commands: Commands) -> None:
    commands.run("up", nodes=1)
    server = commands.server()
    parts = server.children(recursive=True)
    assert {"etcd", "dnsmasq", "containerd", "kubelet", "kube-proxy", "postgres"} <= names(parts)
    server.kill()
    commands.run("down")
    assert wait_until_ended(parts, limit=10) == []


def names(processes: list[psutil.Process]) -> set[str]:
    """Return the names of processes."""
    return {process.name() for process in processes}
