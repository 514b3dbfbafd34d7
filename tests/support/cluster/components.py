"""The four programs of a control plane as servers: flags, readiness and end of each.

`ControlPlane` builds and drives them; how a process is started, watched and ended is `docgrid_cli.local.server`'s.
"""

import http.client
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar

from docgrid_cli.local.ports import LOOPBACK
from docgrid_cli.local.process import Launch
from docgrid_cli.local.server import Server
from support.cluster.certificates import Certificates
from support.cluster.network import GATEWAY, Network

SERVICE_RANGE = "10.96.0.0/16"
ISSUER = "https://kubernetes.default.svc"


@dataclass(frozen=True, slots=True)
class Pace:
    """How quickly the control plane acts, in seconds."""

    node_grace: int = 15
    """without a sign of life of a node until it counts as gone"""
    toleration: int = 10
    """that a pod stays on a node that is gone, unless it says otherwise"""
    scaler_sync: int = 1
    """between two looks of the HorizontalPodAutoscaler"""


@dataclass(frozen=True, slots=True)
class Files:
    """What the programs read; all of it lies in the folder of the control plane."""

    folder: Path
    certificates: Certificates
    tokens: Path
    audit_policy: Path
    audit_log: Path
    component_kubeconfig: Path
    network: Network | None
    """where the programs run; None = on the machine's loopback, where no node can be"""


class Component(Server):
    """One program of the control plane."""

    start_limit: ClassVar[float] = 60.0
    stop_limit: ClassVar[float] = 3.0
    retry_limit: ClassVar[float] = 10.0  # the others may not answer yet

    def __init__(self, program: Path, files: Files, *, port: int) -> None:
        super().__init__(port=port)
        self._program = program
        self._files = files

    def answers(self) -> bool:
        """Ask its health page; what it says of itself needs no proof of who it is."""
        return answers_https(self.port, "/healthz")

    def _prepare(self) -> None:
        """Everything is made by the control plane."""

    def _launch(self) -> Launch:
        network = self._files.network
        return Launch(
            command=[*(network.enter if network else ()), str(self._program), *flags(self._flags())],
            environment={"PATH": os.defpath, "HOME": str(self._files.folder), "GOMAXPROCS": "2"},
            folder=self._files.folder,
            log=self._files.folder / f"{self._program.name}.log",
        )

    def _require_free_port(self) -> None:
        if self._files.network is None:  # else the relay to it has the port
            super()._require_free_port()

    def _flags(self) -> Mapping[str, object]:
        raise NotImplementedError


class Etcd(Component):
    """The database; it forgets what was not synced if the machine fails, which no test cares for."""

    name: ClassVar[str] = "etcd"
    retry_limit: ClassVar[float] = 0.0

    def __init__(self, program: Path, files: Files, *, port: int, peer_port: int) -> None:
        super().__init__(program, files, port=port)
        self._peer_port = peer_port

    @property
    def url(self) -> str:
        """Where clients reach it."""
        return f"http://{LOOPBACK}:{self.port}"

    def answers(self) -> bool:
        """Ask its health page, which reads from the database."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=2)
        return _is_ok(connection, "/health")

    def _flags(self) -> Mapping[str, object]:
        peer = f"http://{LOOPBACK}:{self._peer_port}"
        return {
            "data-dir": self._files.folder / "etcd",
            "unsafe-no-fsync": "true",
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "warn",
        }


class ApiServer(Component):
    """kube-apiserver: RBAC, the tokens of a file and of ServiceAccounts, an audit log of all writes."""

    name: ClassVar[str] = "kube-apiserver"

    def __init__(self, program: Path, files: Files, *, port: int, etcd: str, pace: Pace) -> None:
        super().__init__(program, files, port=port)
        self._etcd = etcd
        self._pace = pace

    def answers(self) -> bool:
        """Ask whether it is ready, its first objects included."""
        return answers_https(self.port, "/readyz")

    def _flags(self) -> Mapping[str, object]:
        files, keys = self._files, self._files.certificates
        return {
            "etcd-servers": self._etcd,
            "etcd-compaction-interval": "0",  # history is cut when a test says so
            **(_ALONE if files.network is None else _WITH_NODES),
            "kubelet-client-certificate": keys.client,
            "kubelet-client-key": keys.client_key,
            "secure-port": self.port,
            "tls-cert-file": keys.server,
            "tls-private-key-file": keys.server_key,
            "client-ca-file": keys.authority,
            "token-auth-file": files.tokens,
            "authorization-mode": "RBAC",
            "service-account-issuer": ISSUER,
            "service-account-key-file": keys.account_key,
            "service-account-signing-key-file": keys.account_key,
            "service-cluster-ip-range": SERVICE_RANGE,
            "audit-policy-file": files.audit_policy,
            "audit-log-path": files.audit_log,
            "audit-log-maxsize": 10_000,  # one file, or a mark in it would mean nothing
            "default-not-ready-toleration-seconds": self._pace.toleration,
            "default-unreachable-toleration-seconds": self._pace.toleration,
            "shutdown-delay-duration": "0s",
            "profiling": "false",
        }


_ALONE = {
    "bind-address": LOOPBACK,
    "advertise-address": LOOPBACK,
    "endpoint-reconciler-type": "none",  # it refuses to publish a loopback address
}
_WITH_NODES = {
    "bind-address": "0.0.0.0",  # noqa: S104 - of a network that is the cluster's own
    "advertise-address": GATEWAY,
    "kubelet-preferred-address-types": "InternalIP",
}


class ControllerManager(Component):
    """kube-controller-manager: Deployments, garbage collection, namespaces, node life, scaling."""

    name: ClassVar[str] = "kube-controller-manager"

    def __init__(self, program: Path, files: Files, *, port: int, pace: Pace) -> None:
        super().__init__(program, files, port=port)
        self._pace = pace

    def _flags(self) -> Mapping[str, object]:
        return {
            **_shared_flags(self._files, self.port),
            "service-account-private-key-file": self._files.certificates.account_key,
            "root-ca-file": self._files.certificates.authority,
            "node-monitor-period": "1s",
            "node-eviction-rate": "10",
            "node-monitor-grace-period": f"{self._pace.node_grace}s",
            "horizontal-pod-autoscaler-sync-period": f"{self._pace.scaler_sync}s",
        }


class Scheduler(Component):
    """kube-scheduler."""

    name: ClassVar[str] = "kube-scheduler"

    def _flags(self) -> Mapping[str, object]:
        return _shared_flags(self._files, self.port)


def flags(options: Mapping[str, object]) -> Sequence[str]:
    """Return options as a command line."""
    return [f"--{name}={value}" for name, value in options.items()]


def answers_https(port: int, path: str) -> bool:
    """Tell whether a server on 127.0.0.1:`port` answers 200 for `path` within two seconds, whoever it is."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return _is_ok(http.client.HTTPSConnection(LOOPBACK, port, timeout=2, context=context), path)


def _shared_flags(files: Files, port: int) -> Mapping[str, object]:
    return {
        "kubeconfig": files.component_kubeconfig,
        "bind-address": LOOPBACK,
        "secure-port": port,
        "leader-elect": "false",
        "profiling": "false",
    }


def _is_ok(connection: http.client.HTTPConnection, path: str) -> bool:
    try:
        connection.request("GET", path)
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
