"""A whole Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.

The fixtures and `make cluster-up` start one in a folder of its own; it has no nodes (see `stand_in_node`). All of
its processes name that folder on their command lines, by which a killed run's are found and ended.
"""

import functools
import json
import os
import secrets
import signal
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.ports import LOOPBACK, free_ports
from docgrid_cli.local.server import Server
from support.cluster.api import Api, write_kubeconfig
from support.cluster.audit import POLICY, AuditLog, Write
from support.cluster.binaries import Binaries
from support.cluster.certificates import make_certificates
from support.cluster.components import ApiServer, ControllerManager, Etcd, Files, Pace, Scheduler
from support.cluster.errors import ClusterUnavailable
from support.cluster.kubectl import Kubectl
from support.cluster.network import Network

ADMIN = "admin"
NODE = "stand-in-node"
COMPONENTS = "control-plane"
"""Users with every right; each has a name of its own in the audit log."""

_PORTS = 5
_EVERYTHING = "system:masters"


class ControlPlane:
    """One control plane: `start` once, `stop` once; between them its apiserver may be taken away and back."""

    def __init__(
        self,
        binaries: Binaries,
        folder: Path,
        *,
        pace: Pace | None = None,
        mark: Mapping[str, str] | None = None,
        network: Network | None = None,
    ) -> None:
        """Make keys, tokens and settings in `folder`, which has to exist; nothing runs yet.

        `mark` are variables for every process. In a `network`, nodes can reach it; else only this machine does.
        """
        self.folder = folder
        self.binaries = binaries
        self._first_port = free_ports(count=_PORTS)
        self._tokens = {name: secrets.token_urlsafe(24) for name in (ADMIN, NODE, COMPONENTS)}
        self._files = self._make_files(network)
        self.audit = AuditLog(self._files.audit_log)
        self._servers = self._build_servers(pace or Pace())
        for part in self._servers.all:
            part.mark = mark or {}
        self.kubeconfig = self._write_kubeconfig("admin", self._tokens[ADMIN])
        self.api = Api.of_kubeconfig(self.kubeconfig)

    @property
    def server(self) -> str:
        """The address of the apiserver."""
        return f"https://{LOOPBACK}:{self.port}"

    @property
    def port(self) -> int:
        """The port of the apiserver."""
        return self._first_port + 2

    @property
    def ports(self) -> Sequence[int]:
        """The ports of its programs."""
        return range(self._first_port, self._first_port + _PORTS)

    @property
    def pids(self) -> Sequence[int]:
        """The ids of its running processes."""
        children = [part.child for part in self._servers.all if part.child is not None]
        return [child.identity.pid for child in children if child.exit_code is None]

    def start(self) -> None:
        """Start everything at once and return when it is ready; raises `ClusterUnavailable`, with nothing left."""
        abort = threading.Event()

        def start(part: Server) -> None:
            try:
                part.start(abort=abort)
            except BaseException:
                abort.set()  # the others wait for it in vain
                raise

        try:
            _at_once([functools.partial(start, part) for part in self._servers.all])
        except LocalStackError as error:
            self.stop()
            raise ClusterUnavailable(f"the control plane does not start: {error}") from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything, clients of the apiserver first; the folder stays."""
        self.api.close()
        self.resume_apiserver()
        parts = self._servers
        _at_once([parts.scheduler.stop, parts.controller_manager.stop])
        parts.apiserver.stop()
        parts.etcd.stop()

    def kubectl(self, namespace: str = "default") -> Kubectl:
        """Return kubectl as the admin."""
        return Kubectl(self.binaries.kubectl, self.kubeconfig, namespace=namespace)

    def api_of(self, user: str) -> Api:
        """Return a client of one of the users with every right."""
        return Api(
            self.server, authority=self._files.certificates.authority.read_text(), token=self._tokens[user]
        )

    def kubeconfig_for(self, service_account: str, namespace: str, *, seconds: int = 36_000) -> Path:
        """Return a kubeconfig of a ServiceAccount that exists; its token is valid for `seconds`."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = self.api.create(path, {**asked, "spec": {"expirationSeconds": seconds}})
        token = answer["status"]["token"]
        return self._write_kubeconfig(f"{namespace}-{service_account}", token, namespace=namespace)

    def node_kubeconfig(self, server: str) -> Path:
        """Return a kubeconfig for the programs of nodes, which see the apiserver at another address."""
        path = self.folder / f"{NODE}.kubeconfig"
        authority = self._files.certificates.authority
        write_kubeconfig(path, server=server, authority=authority, token=self._tokens[NODE])
        return path

    def audit_writes(self, user: str, *, since: int = 0) -> list[Write]:
        """Return the writes of a user since a mark of `audit.mark()`."""
        return self.audit.writes(user, since=since)

    def pause_apiserver(self) -> None:
        """Let the apiserver hang: it takes connections and answers nothing."""
        self._signal_apiserver(signal.SIGSTOP)

    def resume_apiserver(self) -> None:
        """Let a paused apiserver go on."""
        self._signal_apiserver(signal.SIGCONT)

    def stop_apiserver(self) -> None:
        """End the apiserver: connections are refused."""
        self._servers.apiserver.stop()

    def start_apiserver(self) -> None:
        """Start an apiserver that was stopped, on the same port; it has forgotten what watches missed meanwhile.

        A watch that goes on from before the stop is answered 410 if anything was written after its last event.
        """
        self._servers.apiserver.start()

    def compact_etcd(self) -> None:
        """Forget all history but the newest state: lists that go on from an older one are answered 410."""
        now = self._ask_etcd("range", {"key": "AA=="})["header"]["revision"]
        self._ask_etcd("compaction", {"revision": now, "physical": True})

    def _ask_etcd(self, call: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        request = urllib.request.Request(  # noqa: S310 - our own etcd
            f"{self._servers.etcd.url}/v3/kv/{call}", data=json.dumps(body).encode()
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own etcd
            parsed: dict[str, dict[str, str]] = json.load(answer)
        return parsed

    def _signal_apiserver(self, number: signal.Signals) -> None:
        child = self._servers.apiserver.child
        if child is not None and child.exit_code is None:
            os.kill(child.identity.pid, number)

    def _make_files(self, network: Network | None) -> Files:
        files = Files(
            folder=self.folder,
            certificates=make_certificates(self.folder),
            tokens=self.folder / "tokens.csv",
            audit_policy=self.folder / "audit-policy.json",
            audit_log=self.folder / "audit.log",
            component_kubeconfig=self.folder / f"{COMPONENTS}.kubeconfig",
            network=network,
        )
        files.tokens.touch(mode=0o600)
        lines = [f'{token},{name},{name},"{_EVERYTHING}"\n' for name, token in self._tokens.items()]
        files.tokens.write_text("".join(lines))
        files.audit_policy.write_text(json.dumps(POLICY))
        write_kubeconfig(
            files.component_kubeconfig,
            server=self.server,
            authority=files.certificates.authority,
            token=self._tokens[COMPONENTS],
        )
        return files

    def _build_servers(self, pace: Pace) -> "_Servers":
        programs, files, port = self.binaries, self._files, self._first_port
        etcd = Etcd(programs.etcd, files, port=port, peer_port=port + 1)
        return _Servers(
            etcd=etcd,
            apiserver=ApiServer(programs.kube_apiserver, files, port=port + 2, etcd=etcd.url, pace=pace),
            controller_manager=ControllerManager(
                programs.kube_controller_manager, files, port=port + 3, pace=pace
            ),
            scheduler=Scheduler(programs.kube_scheduler, files, port=port + 4),
        )

    def _write_kubeconfig(self, name: str, token: str, *, namespace: str = "default") -> Path:
        path = self.folder / f"{name}.kubeconfig"
        authority = self._files.certificates.authority
        write_kubeconfig(path, server=self.server, authority=authority, token=token, namespace=namespace)
        return path


@dataclass(frozen=True, slots=True)
class _Servers:
    etcd: Etcd
    apiserver: ApiServer
    controller_manager: ControllerManager
    scheduler: Scheduler

    @property
    def all(self) -> Sequence[Server]:
        return (self.etcd, self.apiserver, self.controller_manager, self.scheduler)


def _at_once(calls: Sequence[Callable[[], None]]) -> None:
    """Make calls in threads of their own, wait for all, and raise the first error."""
    errors: list[BaseException] = []

    def call(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=call, args=(function,)) for function in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
