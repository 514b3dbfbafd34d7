"""A release of the chart on a cluster with real nodes: installed, changed and removed.

The end-to-end tests and their benchmark drive it. Its database is one of its own on the PostgreSQL in the cluster;
its documents are registered from this machine, as by a person with the command `docgrid`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from docgrid_core.store import models
from support import fake_provider
from support.backing import Backing
from support.chart import CHART
from support.cluster.dump import dump
from support.cluster.fixtures import create_namespace
from support.cluster.helm import Helm
from support.cluster.node_cluster import NodeCluster
from support.database import create_database, drop_database
from support.fake_provider import FakeProvider
from support.worker_pods import WorkerPods

RELEASE = "docgrid"
OPERATOR = "deployment/docgrid-operator"


class Release(WorkerPods):
    """One release in a namespace of its own; `image` is what it runs from its next install or upgrade on."""

    def __init__(
        self,
        cluster: NodeCluster,
        backing: Backing,
        helm: Helm,
        *,
        image: str,
        namespace: str,
        database: str,
        provider: FakeProvider,
        folder: Path,
    ) -> None:
        super().__init__(
            cluster, backing, namespace=namespace, database=database, provider=provider, folder=folder
        )
        self.image = image
        self.database = database
        self.helm = replace(helm, kubeconfig=cluster.plane.kubeconfig, namespace=namespace)
        backing.make_secrets(self.kubectl, database)

    def values(self, **values: Any) -> Mapping[str, Any]:
        """Return values for the chart with `values` laid over those that every release here has."""
        repository, _, tag = self.image.rpartition(":")
        image = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
        # On the node that no test takes away: what is lost with it is another question.
        placed = {"nodeSelector": {"kubernetes.io/hostname": self.cluster.nodes[0].name}}
        kinds = {"crds": {"enabled": False}}  # the cluster has them, whichever release comes first
        return {"image": image, "database": {"secretName": "docgrid-database"}, **kinds, **placed, **values}

    def install(self, *arguments: str, chart: Path = CHART, **values: Any) -> str:
        """Install the chart, wait until the operator works, and return what helm said."""
        said = self.helm("install", RELEASE, str(chart), *arguments, values=self.values(**values)).out
        self.wait_for_operator()
        return said

    def upgrade(self, **values: Any) -> None:
        """Change the release and wait until the operator works."""
        self.helm("upgrade", RELEASE, str(CHART), values=self.values(**values))
        self.wait_for_operator()

    def uninstall(self) -> None:
        """Remove pools and release, and wait until no pod of theirs is left."""
        self.remove_pools()
        self.helm("uninstall", RELEASE, "--wait", "--timeout=60s")

    def wait_for_operator(self) -> None:
        """Wait until the newest operator is ready and no other is left."""
        self.kubectl("rollout", "status", OPERATOR, "--timeout=90s", limit=100)

    def add_model(self, name: str = fake_provider.MODEL, dimension: int = fake_provider.DIMENSION) -> None:
        """Register an embedding model and make it the one that is searched."""
        models.add(self.db, provider="openai", name=name, version="1", dimension=dimension, config={})
        models.activate(self.db, name)

    def operator_pod(self) -> str:
        """Return the name of the operator's pod."""
        selector = "app.kubernetes.io/component=operator"
        return self.kubectl(
            "get", "pods", f"--selector={selector}", "--output=jsonpath={.items[0].metadata.name}"
        ).out


@contextmanager
def new_release(
    cluster: NodeCluster, backing: Backing, helm: Helm, *, image: str, folder: Path, namespace: str = ""
) -> Iterator[Release]:
    """Yield a release with an empty database of its own, not installed yet.

    Its namespace is new too, unless one that exists is given: that one stays, and the release is uninstalled.
    """
    own = namespace or f"test-{uuid4().hex[:8]}"
    server = backing.database_settings("postgres").url.get_secret_value()
    database = create_database(server, template="docgrid")
    if not namespace:
        create_namespace(cluster.plane.api, own)
    try:
        with FakeProvider(cluster.listen()) as provider:
            release = Release(
                cluster,
                backing,
                helm,
                image=image,
                namespace=own,
                database=database,
                provider=provider,
                folder=folder,
            )
            try:
                yield release
            except BaseException:
                print(dump(cluster))  # before it is gone
                raise
            finally:
                release.documents.close()
                if namespace:
                    release.uninstall()
                else:
                    _remove_namespace(cluster, own)
    finally:
        drop_database(server, database)


def _remove_namespace(cluster: NodeCluster, namespace: str) -> None:
    """Delete a namespace with all that runs in it, and wait: the next test needs the room."""
    kubectl = cluster.plane.kubectl(namespace)
    if kubectl.attempt("get", "namespace", namespace).code == 0:
        kubectl("delete", "namespace", namespace, "--wait=true", "--timeout=80s")
