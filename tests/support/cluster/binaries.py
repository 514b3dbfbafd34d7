"""Where the programs of a control plane are found: `KUBEBUILDER_ASSETS`, the cache folder, else they are got once.

The fixtures and `make cluster-up` call `prepare`, the generator of the chart `prepare_tools`. The cache lies outside
of the tree, by version, and is shared by all checkouts: `DOCGRID_CACHE` names it, else it lies where the platform
keeps a user's caches.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.cluster import build, cache, fetch

Report = Callable[[str], None]
"""Takes a line that tells a person how far it is."""

_WHAT = "the control plane's programs"


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs; all of them exist and may be executed."""

    etcd: Path
    kube_apiserver: Path
    kube_controller_manager: Path
    kube_scheduler: Path
    kubectl: Path
    helm: Path

    @property
    def for_a_person(self) -> tuple[Path, ...]:
        """The programs that a person calls."""
        return (self.kubectl, self.helm)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for what is made once on a machine; nothing is made yet."""
    if environment.get("DOCGRID_CACHE"):
        return Path(environment["DOCGRID_CACHE"]).expanduser().absolute()
    caches = environment.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "docgrid"


def prepare(report: Report, environment: Mapping[str, str] = os.environ) -> Binaries:
    """Return the programs, made first if this machine does not have them.

    That takes minutes, in which `report` is called every few seconds. Raises `ClusterUnavailable`, with the reason.
    """
    folder = cache_folder(environment)
    assets = environment.get("KUBEBUILDER_ASSETS")
    given = [Path(assets)] if assets else []
    with cache.locked(folder, _WHAT, report):
        kubernetes = build.find_or_build(build.CONTROL_PLANE, folder, given, report)
        etcd = fetch.find_or_fetch_etcd(folder, given, report)
        tools = fetch.find_or_fetch_tools(folder, report)
    return Binaries(
        etcd=etcd,
        kube_apiserver=kubernetes["kube-apiserver"],
        kube_controller_manager=kubernetes["kube-controller-manager"],
        kube_scheduler=kubernetes["kube-scheduler"],
        kubectl=tools["kubectl"],
        helm=tools["helm"],
    )


def prepare_tools(report: Report, environment: Mapping[str, str] = os.environ) -> Mapping[str, Path]:
    """Return kubectl and helm by name, fetched first if this machine does not have them: what needs no cluster.

    Raises `ClusterUnavailable`, with the reason.
    """
    folder = cache_folder(environment)
    with cache.locked(folder, _WHAT, report):
        return fetch.find_or_fetch_tools(folder, report)
