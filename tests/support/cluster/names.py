"""Cluster DNS: dnsmasq on the switch of a `Network`, told of every Service by a thread that watches them.

`NodeCluster` runs one, so that pods find a Service by its name, as everywhere.
"""

import contextlib
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path

from support.cluster.api import Api, Object, Watch
from support.cluster.errors import ApiError
from support.cluster.network import GATEWAY, Network
from support.cluster.programs import NodePrograms

DOMAIN = "cluster.local"
_SERVICES = "/api/v1/services"
_WATCH_LIMIT = 300  # seconds
_RELIST = 0.2  # seconds after a watch that broke


class ClusterNames:
    """The name server of one cluster; `start` once, `stop` once."""

    def __init__(
        self, api: Api, network: Network, programs: NodePrograms, folder: Path, *, mark: Mapping[str, str]
    ) -> None:
        """Take a client of its own and the cluster's folder; nothing runs yet. `mark` are variables for the server."""
        self._api = api
        self._network = network
        self._programs = programs
        self._folder = folder
        self._mark = mark
        self._hosts = folder / "services"  # a folder: dnsmasq sees by itself what changes in it
        self._known: dict[str, str] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._watch: Watch | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="cluster names", daemon=True)

    def start(self) -> None:
        """Answer from now on."""
        self._hosts.mkdir()
        with (self._folder / "dnsmasq.log").open("wb") as log:
            self._server = subprocess.Popen(
                [*self._network.enter, *self._command()],
                env={**self._programs.environment, **self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._thread.start()

    def stop(self) -> None:
        """End server and thread; one that was never started has ended."""
        self._stopping.set()
        if self._server is not None:
            if self._watch is not None:
                self._watch.stop()
            self._thread.join()
            self._server.kill()
            self._server.wait()
        self._api.close()

    def _command(self) -> list[str]:
        options = [
            "--keep-in-foreground",
            "--conf-file=/dev/null",
            "--no-resolv",
            "--no-hosts",
            f"--hostsdir={self._hosts}",
            f"--local=/{DOMAIN}/",
            "--bind-interfaces",
            f"--listen-address={GATEWAY}",
            "--user=root",
            "--pid-file=",
            "--log-facility=-",
        ]
        return [str(self._programs.name_server), *options]

    def _follow(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(ApiError):
                found = self._api.get(_SERVICES)
                self._known = {}
                for service in found["items"]:
                    self._learn(service)
                self._tell()
                self._follow_changes(found["metadata"]["resourceVersion"])
            self._stopping.wait(_RELIST)

    def _follow_changes(self, version: str) -> None:
        watch = self._watch = self._api.watch(_SERVICES, seconds=_WATCH_LIMIT, resource_version=version)
        if self._stopping.is_set():  # said while there was no watch to stop
            watch.stop()
        for kind, service in watch:
            if kind == "ERROR":
                return
            if kind == "DELETED":
                self._known.pop(_name(service), None)
            elif kind != "BOOKMARK":
                self._learn(service)
            self._tell()

    def _learn(self, service: Object) -> None:
        address = service["spec"].get("clusterIP", "None")
        if address != "None":
            self._known[_name(service)] = address

    def _tell(self) -> None:
        new = self._folder / "services.new"
        new.write_text("".join(f"{address} {name}\n" for name, address in self._known.items()))
        new.replace(self._hosts / "all")


def _name(service: Object) -> str:
    metadata = service["metadata"]
    return f"{metadata['name']}.{metadata['namespace']}.svc.{DOMAIN}"
