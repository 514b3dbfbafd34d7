"""PostgreSQL with pgvector, an S3 server and an embedding model as pods: what an installation stands on.

The end-to-end tests and `make cluster-up NODES=…` run them, from the test image. They lie on the first node, which
no test takes away, and are reached from this machine too, as the command `docgrid` of a person would.
"""

import contextlib
import secrets
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from docgrid_core.settings import DatabaseSettings, StorageSettings
from docgrid_operator.kinds import Object
from docgrid_pipeline.objects import ObjectStore
from support.cluster.kubectl import Kubectl
from support.cluster.node_cluster import NodeCluster
from support.image.archive import Image
from support.races import wait_until

BUCKET = "docgrid"
_UID = 10_001
_LIMIT = "90s"


@dataclass(frozen=True, slots=True)
class Server:
    """One of the servers: its Service, the command in the test image, and the ports on which it is reached."""

    name: str
    command: str
    listens_on: int
    port: int
    """the Service's"""
    node_port: int


POSTGRES = Server("postgres", "run-postgres", listens_on=5432, port=5432, node_port=30432)
STORAGE = Server("minio", "run-objectstore", listens_on=8333, port=9000, node_port=30900)
EMBEDDINGS = Server("embeddings", "run-model", listens_on=8000, port=8000, node_port=30800)
SERVERS = (POSTGRES, STORAGE, EMBEDDINGS)
"""Two of them have the names and ports that the samples use."""


@dataclass(frozen=True, slots=True)
class Backing:
    """The three servers in one namespace of a cluster, and what opens them."""

    cluster: NodeCluster
    kubectl: Kubectl
    image: Image
    password: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    access_key: str = field(default_factory=lambda: secrets.token_hex(8))
    secret_key: str = field(default_factory=lambda: secrets.token_hex(16))

    def start(self) -> None:
        """Apply them and wait until they answer, to this machine too."""
        self.cluster.nodes[0].load(self.image.archive)
        self.kubectl.apply(*self._objects())
        names = [f"deployment/{server.name}" for server in SERVERS]
        self.kubectl("wait", "--for=condition=Available", f"--timeout={_LIMIT}", *names, limit=100)
        # The node's rules for a Service follow its pods' readiness.
        wait_until(lambda: all(self._answers_here(server) for server in SERVERS))
        with contextlib.closing(ObjectStore(self.storage_settings())) as store:
            store.ensure_bucket()

    def _answers_here(self, server: Server) -> bool:
        """Tell whether a server holds the line: the relay takes every call, and hangs up where nobody is."""
        with socket.create_connection(("127.0.0.1", self.cluster.reach(server.node_port))) as line:
            line.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                return line.recv(1) != b""
            return True

    def address(self, server: Server) -> str:
        """Return where pods of every namespace reach a server, as host:port."""
        return f"{server.name}.{self.kubectl.namespace}:{server.port}"

    def url(self, database: str) -> str:
        """Return the address of a database for pods."""
        return f"postgresql://docgrid:{self.password}@{self.address(POSTGRES)}/{database}"

    def database_settings(self, database: str) -> DatabaseSettings:
        """Return the settings with which this machine reaches a database."""
        address = f"127.0.0.1:{self.cluster.reach(POSTGRES.node_port)}"
        return DatabaseSettings(url=SecretStr(f"postgresql://docgrid:{self.password}@{address}/{database}"))

    def storage_settings(self) -> StorageSettings:
        """Return the settings with which this machine reaches the object store."""
        return StorageSettings(
            endpoint=f"127.0.0.1:{self.cluster.reach(STORAGE.node_port)}",
            secure=False,
            bucket=BUCKET,
            access_key=SecretStr(self.access_key),
            secret_key=SecretStr(self.secret_key),
        )

    def environment(self, database: str) -> Mapping[str, str]:
        """Return the variables with which the command `docgrid` works on this machine."""
        storage = self.storage_settings()
        return {
            "DOCGRID_DATABASE_URL": self.database_settings(database).url.get_secret_value(),
            "DOCGRID_STORAGE_ENDPOINT": storage.endpoint,
            "DOCGRID_STORAGE_SECURE": "false",
            "DOCGRID_STORAGE_BUCKET": storage.bucket,
            "DOCGRID_STORAGE_ACCESS_KEY": self.access_key,
            "DOCGRID_STORAGE_SECRET_KEY": self.secret_key,
            "DOCGRID_EMBEDDING_PROVIDER": "openai",
            "DOCGRID_EMBEDDING_BASE_URL": f"http://127.0.0.1:{self.cluster.reach(EMBEDDINGS.node_port)}",
        }

    def make_secrets(self, kubectl: Kubectl, database: str) -> None:
        """Create a release's Secrets of database and object store, by the names that the samples use."""
        keys = {"access-key": self.access_key, "secret-key": self.secret_key}
        url = {"url": self.url(database)}
        kubectl.apply(build_secret("docgrid-database", url), build_secret("docgrid-storage", keys))

    def crash(self, server: Server) -> None:
        """Kill a server and wait until it answers again, with the data it had."""
        before = self._container(server)
        self.cluster.nodes[0].signal(before["containerID"], signal.SIGKILL)

        def is_back() -> bool:
            now = self._container(server)
            return bool(now["ready"] and now["containerID"] != before["containerID"])

        wait_until(is_back)

    def _container(self, server: Server) -> Object:
        path = f"/api/v1/namespaces/{self.kubectl.namespace}/pods"
        (pod,) = self.cluster.plane.api.get(path, labelSelector=f"app={server.name}")["items"]
        found: Object = pod["status"]["containerStatuses"][0]
        return found

    def _objects(self) -> list[Object]:
        keys = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        return [
            build_secret("backing", {"POSTGRES_PASSWORD": self.password, **keys}),
            *(each for server in SERVERS for each in self._server(server)),
        ]

    def _server(self, server: Server) -> list[Object]:
        labels = {"app": server.name}
        pod = {
            "nodeSelector": {"kubernetes.io/hostname": self.cluster.nodes[0].name},
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 3,
            "securityContext": {"runAsUser": _UID, "runAsGroup": _UID, "fsGroup": _UID},
            "containers": [
                {
                    "name": server.name,
                    "image": self.image.name,
                    "imagePullPolicy": "Never",
                    "command": [server.command],
                    "envFrom": [{"secretRef": {"name": "backing"}}],
                    "env": [{"name": "DATA", "value": "/data"}],
                    "ports": [{"containerPort": server.listens_on}],
                    "readinessProbe": {"tcpSocket": {"port": server.listens_on}, "periodSeconds": 1},
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }
        deployment = {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        port = {"port": server.port, "targetPort": server.listens_on, "nodePort": server.node_port}
        service = {"type": "NodePort", "selector": labels, "ports": [port]}
        return [
            _object("apps/v1", "Deployment", server.name, deployment),
            _object("v1", "Service", server.name, service),
        ]


def _object(api_version: str, kind: str, name: str, spec: Any) -> Object:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def build_secret(name: str, data: dict[str, str]) -> Object:
    """Return a Secret."""
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
