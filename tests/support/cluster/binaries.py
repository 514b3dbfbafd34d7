"""Where the programs of a control plane are found: `KUBEBUILDER_ASSETS`, the cache folder, else they are got once.

The fixtures and `make cluster-up` call `prepare`, the generator of the chart `prepare_tools`. The cache lies outside
of the tree, by version, and is shared by all checkouts: `DOCGRID_CACHE` names it, else it lies where the platform
keeps a user's caches.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.cluster import build, fetch
from support.cluster.errors import ClusterUnavailable

Report = Callable[[str], None]
"""Takes a line that tells a person how far it is."""


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
    cache = cache_folder(environment)
    assets = environment.get("KUBEBUILDER_ASSETS")
    given = [Path(assets)] if assets else []
    with _locked(cache, report):
        kubernetes = build.find_or_build(cache, given, report)
        etcd = fetch.find_or_fetch_etcd(cache, given, report)
        tools = fetch.find_or_fetch_tools(cache, report)
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
    cache = cache_folder(environment)
    with _locked(cache, report):
        return fetch.find_or_fetch_tools(cache, report)


@contextlib.contextmanager
def _locked(cache: Path, report: Report) -> Iterator[None]:
    """Let one process of this machine make things in the cache; the others wait for it and find them made."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        stream = (cache / "lock").open("w")
    except OSError as error:
        raise ClusterUnavailable(
            f"can not write the cache folder {cache}: {error.strerror} (set DOCGRID_CACHE)"
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another run is preparing the control plane's programs: waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        _clear_after_killed_runs(cache)
        yield


def _clear_after_killed_runs(cache: Path) -> None:
    for scratch in cache.glob("new-*"):
        shutil.rmtree(scratch, ignore_errors=True)
