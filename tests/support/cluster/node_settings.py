"""Settings of a node's programs, pure: containerd, its network plug-in, kubelet, kube-proxy.

`Node` writes them into files. Paths are those that the programs see in the node's own file system.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.cluster.components import flags
from support.cluster.names import DOMAIN
from support.cluster.network import GATEWAY, node_address, pod_range
from support.cluster.programs import NodePrograms

PAUSE_IMAGE = "localhost/pause:1"
SOCKET = "/run/containerd/containerd.sock"
"""Where containerd listens, in the node's own file system: the path of a socket has to be short."""
_POD_NETWORK = "10.98.0.0/16"


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What distinguishes one node from another."""

    number: int
    """from 1"""
    name: str
    folder: Path
    cgroup: str
    kubeconfig: Path
    authority: Path
    programs: NodePrograms

    @property
    def address(self) -> str:
        """Where the others reach it."""
        return node_address(self.number)


def build_containerd_config(plan: NodePlan) -> str:
    """Return containerd's settings (TOML): runc, the file system of overlays, no image from anywhere."""
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0

[grpc]
  address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # A process without CAP_SYS_RESOURCE may not lower it.
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plan.programs.network_plugins}"
    conf_dir = "{plan.folder / "network"}"

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{plan.programs.runc}"
"""


def build_pod_network(plan: NodePlan) -> Mapping[str, Any]:
    """Return the settings of the network of pods: a bridge, and addresses of this node's range."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/pod-addresses",
        "ranges": [[{"subnet": pod_range(plan.number)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def build_kubelet_config(plan: NodePlan) -> Mapping[str, Any]:
    """Return the kubelet's settings: its groups inside of the node's, reports at once, nothing evicted for space."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": plan.address,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(plan.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDNS": [GATEWAY],
        "clusterDomain": DOMAIN,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{plan.cgroup}",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "enforceNodeAllocatable": [],
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "imagefs.available": "0%"},
        "failCgroupV1": False,
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": False,
        "maxPods": 60,
        "nodeLeaseDurationSeconds": 8,
        "nodeStatusReportFrequency": "5s",
        "nodeStatusUpdateFrequency": "2s",
        "oomScoreAdj": 0,
        "registerNode": True,
        "resolvConf": "",
        "rotateCertificates": False,
    }


def kubelet_command(plan: NodePlan, config: Path) -> Sequence[str]:
    """Return how the kubelet is started."""
    options = {
        "config": config,
        "kubeconfig": plan.kubeconfig,
        "hostname-override": plan.name,
        "node-ip": plan.address,
    }
    return [str(plan.programs.kubelet), *flags(options)]


def proxy_command(plan: NodePlan) -> Sequence[str]:
    """Return how kube-proxy is started: it answers for the addresses of Services, on this node only."""
    options = {
        "kubeconfig": plan.kubeconfig,
        "hostname-override": plan.name,
        "proxy-mode": "nftables",
        "nodeport-addresses": "primary",
        "cluster-cidr": _POD_NETWORK,
        # An answer between two pods of one bridge would otherwise not pass by here again.
        "masquerade-all": "true",
        "conntrack-max-per-core": 0,
        "oom-score-adj": 0,
        "healthz-bind-address": f"{plan.address}:10256",
        "metrics-bind-address": f"{plan.address}:10249",
    }
    return [str(plan.programs.kube_proxy), *flags(options)]
