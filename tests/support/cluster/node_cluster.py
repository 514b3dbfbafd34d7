"""A cluster with real nodes: a control plane and nodes on a network of their own.

The end-to-end tests, their benchmark and `make cluster-up NODES=…` start one.
"""

import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from docgrid_cli.local.ports import free_ports
from support.cluster import cgroups
from support.cluster.binaries import Binaries
from support.cluster.components import Pace
from support.cluster.control_plane import NODE, ControlPlane
from support.cluster.errors import ApiError
from support.cluster.names import ClusterNames
from support.cluster.network import GATEWAY, Network, node_address
from support.cluster.node import Node
from support.cluster.node_settings import NodePlan
from support.cluster.programs import NodePrograms
from support.races import wait_until


def group_of(folder: Path) -> str:
    """Return the name of the control group of a cluster; by its folder, what a killed run left is found."""
    return f"docgrid-{sha256(bytes(folder)).hexdigest()[:8]}"


class NodeCluster:
    """A control plane and its nodes; `start` once, `stop` once."""

    def __init__(
        self,
        binaries: Binaries,
        programs: NodePrograms,
        folder: Path,
        *,
        nodes: int,
        pace: Pace | None = None,
        mark: Mapping[str, str] | None = None,
        node_ports: Sequence[int] = (),
    ) -> None:
        """Make settings in `folder`, which has to exist; nothing runs yet.

        `node_ports` are ports of Services of type NodePort that this machine shall reach too: see `reach`.
        """
        self._network = Network(programs.environment)
        self.plane = ControlPlane(binaries, folder, pace=pace, mark=mark, network=self._network)
        first = free_ports(count=len(node_ports), avoid=self.plane.ports) if node_ports else 0
        self._reached = {port: first + index for index, port in enumerate(node_ports)}
        self._names = ClusterNames(self.plane.api_of(NODE), self._network, programs, folder, mark=mark or {})
        kubeconfig = self.plane.node_kubeconfig(f"https://{GATEWAY}:{self.plane.port}")
        self._group = group_of(folder)
        self.nodes = [
            Node(
                NodePlan(
                    number=number,
                    name=f"node-{number}",
                    folder=folder / f"node-{number}",
                    cgroup=f"{self._group}/node-{number}",
                    kubeconfig=kubeconfig,
                    authority=folder / "ca.crt",
                    programs=programs,
                ),
                self._network,
            )
            for number in range(1, nodes + 1)
        ]

    def start(self, images: Sequence[Path], report: Callable[[str], None] = lambda _: None) -> None:
        """Start everything and load the images into every node; raises `ClusterUnavailable`, with nothing left."""
        cgroups.remove(self._group)
        try:
            relayed = [(port, f"{node_address(1)}:{inside}") for inside, port in self._reached.items()]
            self._network.start(self.plane.ports, relayed)
            report("starting etcd, kube-apiserver, kube-controller-manager and kube-scheduler")
            self.plane.start()
            self._names.start()
            report(
                f"starting {len(self.nodes)} nodes: containerd, kubelet and kube-proxy, and loading images"
            )
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                for done in [pool.submit(self._start_node, node, images) for node in self.nodes]:
                    done.result()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything and remove it from this machine; only the folder stays, without the nodes' disks."""
        with contextlib.ExitStack() as ends:  # from below, each whatever becomes of the others
            ends.callback(self._network.stop)
            ends.callback(self.plane.stop)
            ends.callback(self._names.stop)
            ends.callback(cgroups.remove, self._group)
            for node in self.nodes:
                ends.callback(node.stop)

    def reach(self, node_port: int) -> int:
        """Return the port of 127.0.0.1 that leads to a NodePort that was asked for."""
        return self._reached[node_port]

    def listen(self) -> socket.socket:
        """Return a listening socket that pods can reach."""
        return self._network.listen()

    def cut_off(self, node: Node) -> None:
        """Take a node off the network: it and its pods run on, alone."""
        self._network.cut(node.plan.number)

    def reconnect(self, node: Node) -> None:
        """Put a node back on the network."""
        self._network.mend(node.plan.number)

    def revive(self, node: Node) -> None:
        """Bring a node back that was drained, cut off, switched off or deleted, and wait until it takes pods."""
        if not node.is_whole:
            node.power_off()
            node.start()
        self.reconnect(node)
        path = f"/api/v1/nodes/{node.name}"

        def takes_pods() -> bool:
            try:
                found = self.plane.api.get(path)
            except ApiError:
                return False  # not registered again yet
            if found["spec"].get("unschedulable"):
                self.plane.api.patch(path, {"spec": {"unschedulable": None}})
            conditions = {each["type"]: each["status"] for each in found["status"].get("conditions", [])}
            return conditions.get("Ready") == "True" and not found["spec"].get("taints")

        wait_until(takes_pods)

    @staticmethod
    def _start_node(node: Node, images: Sequence[Path]) -> None:
        node.start()
        for archive in images:
            node.load(archive)
