"""The programs of a node: a container runtime from Debian's packages, kubelet and kube-proxy as built.

`NodeCluster` calls `prepare_node`; where a program can not be had, it says why.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from support.cluster import build, cache, debian
from support.cluster.binaries import Report, cache_folder
from support.cluster.errors import ClusterUnavailable

_SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PACKAGES = (
    "containerd",
    "runc",
    "containernetworking-plugins",
    "dnsmasq-base",
    "iproute2",
    "nftables",
    # Libraries of theirs that a small machine may lack.
    "libbpf1",
    "libbsd0",
    "libcap2",
    "libdbus-1-3",
    "libedit2",
    "libelf1",
    "libgmp10",
    "libhogweed6",
    "libidn2-0",
    "libjansson4",
    "libmd0",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnettle8",
    "libnfnetlink0",
    "libnftables1",
    "libnftnl11",
    "libseccomp2",
    "libunistring2",
)


@dataclass(frozen=True, slots=True)
class NodePrograms:
    """Paths of programs, and of the folder with the network plug-ins."""

    kubelet: Path
    kube_proxy: Path
    root: Path
    """where the packages are unpacked"""

    @property
    def containerd(self) -> Path:
        """The container runtime; its shims lie beside it."""
        return self.root / "usr/bin/containerd"

    @property
    def ctr(self) -> Path:
        """The runtime's own client."""
        return self.root / "usr/bin/ctr"

    @property
    def runc(self) -> Path:
        """What starts a container."""
        return self.root / "usr/sbin/runc"

    @property
    def network_plugins(self) -> Path:
        """The folder of the plug-ins that connect a pod."""
        return self.root / "usr/lib/cni"

    @property
    def name_server(self) -> Path:
        """What answers for names: dnsmasq."""
        return self.root / "usr/sbin/dnsmasq"

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables with which they find each other and their libraries."""
        own = [self.root / name for name in ("usr/bin", "usr/sbin", "bin")]
        libraries = [str(path) for path in self.root.glob("**/lib/*-linux-gnu")]
        return {"PATH": ":".join([*map(str, own), _SYSTEM]), "LD_LIBRARY_PATH": ":".join(libraries)}


def prepare_node(report: Report, environment: Mapping[str, str] = os.environ) -> NodePrograms:
    """Return the programs, made first if need be; raises `ClusterUnavailable` where there can be no node."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ClusterUnavailable("no node: a kubelet with a container runtime needs Linux and root")
    folder = cache_folder(environment)
    assets = environment.get("KUBEBUILDER_ASSETS")
    with cache.locked(folder, "the programs of a node", report):
        given = [Path(assets)] if assets else []
        kubernetes = build.find_or_build(build.NODE, folder, given, report)
        root = debian.find_or_fetch(folder, "node", _PACKAGES, report)
    return NodePrograms(kubelet=kubernetes["kubelet"], kube_proxy=kubernetes["kube-proxy"], root=root)
