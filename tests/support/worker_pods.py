"""Pools of real pods in a namespace, what can happen to a pod, and the jobs that its worker holds.

`Release` is built on it. An embedding server of the test's own lets a worker wait in the middle of a job.
"""

import signal
from pathlib import Path
from typing import Any

from docgrid_core.jobs import JobId
from docgrid_operator.kinds import Object
from support import fake_provider, tables
from support.backing import STORAGE, Backing
from support.cluster.node import Node
from support.cluster.node_cluster import NodeCluster
from support.fake_provider import FakeProvider
from support.namespace_objects import NamespaceObjects
from support.races import wait_until
from support.site import Site

PROMISE = 20.0
"""Seconds within which a job goes on, very generously: the promise is 3 for 95 of 100."""

NEVER_PULLED: Object = {"spec": {"containers": [{"name": "worker", "imagePullPolicy": "Never"}]}}
"""Part of a pool: its image is on the nodes already."""


class WorkerPods(NamespaceObjects):
    """The pools of one namespace, whose operator and database are there."""

    def __init__(
        self,
        cluster: NodeCluster,
        backing: Backing,
        *,
        namespace: str,
        database: str,
        provider: FakeProvider,
        folder: Path,
    ) -> None:
        super().__init__(cluster.plane, namespace)
        self.cluster = cluster
        self.backing = backing
        self.provider = provider
        settings, storage = backing.database_settings(database), backing.storage_settings()
        self.documents = Site(settings, storage, folder=folder, settings={})
        self.db = self.documents.db

    def apply_workers(self, replicas: int, *, name: str = "pool", **spec: Any) -> None:
        """Apply a pool whose workers ask the test's own embedding server."""
        self.apply_pool(
            name,
            replicas=replicas,
            **{
                "model": {"name": fake_provider.MODEL},
                "embedding": {"provider": "openai", "baseUrl": self.provider.base_url},
                "database": {"secretRef": {"name": "docgrid-database"}},
                "storage": {
                    "endpoint": self.backing.address(STORAGE),
                    "secure": False,
                    "secretRef": {"name": "docgrid-storage"},
                },
                "concurrency": 1,
                "podTemplate": NEVER_PULLED,
                **spec,
            },
        )

    def start_workers(self, replicas: int, *, name: str = "pool", **spec: Any) -> None:
        """Apply a pool and wait until its workers are ready, and old enough to be judged by their pods."""
        self.apply_workers(replicas, name=name, **spec)
        self.wait_until_ready(replicas, name=name)
        self.age_workers()

    def age_workers(self) -> None:
        """Let every worker be old enough to be judged by its pod."""
        tables.change(self.db, "UPDATE worker_nodes SET started_at = started_at - interval '1 minute'")

    def wait_until_ready(self, replicas: int, *, name: str = "pool") -> None:
        """Wait until a pool has so many ready workers and no other pods."""

        def is_ready() -> bool:
            status = (self.get("indexingworker", name) or {}).get("status") or {}
            counts = (status.get("readyReplicas", 0), status.get("replicas", 0))
            return counts == (replicas, replicas) and len(self.pods(name)) == replicas

        wait_until(is_ready)

    def remove_pool(self, name: str = "pool") -> None:
        """Delete a pool and wait until nothing of it is left."""
        self.kubectl("delete", "indexingworker", name, "--wait=true")
        wait_until(lambda: not self.pods(name) and self.get("deployment", name) is None)

    def remove_pools(self) -> None:
        """Delete every pool and wait until no worker is left."""
        for pool in self.kubectl("get", "indexingworkers", "--output=name").out.split():
            self.remove_pool(pool.partition("/")[2])

    def pods(self, name: str = "pool") -> list[Object]:
        """Return the pods of a pool."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        found = self.control_plane.api.get(path, labelSelector=f"docgrid.dev/indexing-worker={name}")
        return list(found["items"])

    def ready_pods(self, node: str, *, name: str = "pool") -> list[Object]:
        """Return the ready pods of a pool on a node."""
        return [pod for pod in self.pods(name) if pod["spec"].get("nodeName") == node and _is_ready(pod)]

    def revisions(self, name: str = "pool") -> set[str]:
        """Return the pod templates that a pool has had: one more for each roll."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/replicasets"
        found = self.control_plane.api.get(path, labelSelector=f"docgrid.dev/indexing-worker={name}")
        return {each["metadata"]["name"] for each in found["items"]}

    # What can happen to a pod.

    def node_of(self, pod: str) -> Node:
        """Return the node that runs a pod."""
        name = self._pod(pod)["spec"]["nodeName"]
        return next(node for node in self.cluster.nodes if node.name == name)

    def container_of(self, pod: str) -> str:
        """Return the runtime's id of a pod's first container."""
        return str(self._pod(pod)["status"]["containerStatuses"][0]["containerID"])

    def signal(self, pod: str, number: signal.Signals) -> None:
        """Send the processes of a pod's first container a signal, from outside of it."""
        self.node_of(pod).signal(self.container_of(pod), number)

    def delete_by_force(self, pod: str) -> None:
        """Delete a pod as `kubectl delete --force` does."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"
        self.control_plane.api.delete(path, {"gracePeriodSeconds": 0})

    def exhaust_memory(self, pod: str) -> None:
        """Use up the memory of a pod's first container, so that the kernel kills its process."""
        self.node_of(pod).exhaust_memory(self.container_of(pod))

    def _pod(self, name: str) -> Object:
        return self.control_plane.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")

    # Jobs.

    def run_one(self, **ingest: Any) -> tuple[JobId, str]:
        """Ingest a document and return its job and the pod that holds it; the embedding server lets it wait."""
        self.provider.gate.clear()
        job_id = self.documents.ingest("a text to be embedded", **ingest)
        wait_until(lambda: tables.attempts(self.db, job_id) and self.holder(job_id))
        return job_id, self.holder(job_id)

    def holder(self, job_id: JobId) -> str:
        """Return the pod whose worker holds a job; empty if none does."""
        found = tables.fetch(
            self.db,
            "SELECT w.pod_name FROM embedding_jobs j JOIN worker_nodes w ON w.id = j.locked_by_worker_id"
            " WHERE j.id = :id AND j.status = 'PROCESSING'",
            id=job_id,
        )
        return str(found[0][0]) if found else ""

    def wait_for_another(self, job_id: JobId, attempt: int = 2) -> None:
        """Wait until a job has been claimed again."""
        wait_until(lambda: len(tables.attempts(self.db, job_id)) >= attempt, limit=PROMISE)

    def finish(self, *job_ids: JobId) -> None:
        """Let the embedding server answer, and wait until the jobs are INDEXED."""
        self.provider.gate.set()
        self.documents.wait_indexed(*job_ids)

    def settle(self) -> None:
        """Let the embedding server answer, and wait until no job is left to do."""
        self.provider.reset()
        query = "SELECT count(*) FROM embedding_jobs WHERE status IN ('PENDING', 'PROCESSING')"
        wait_until(lambda: not tables.value(self.db, query))

    def retries(self, job_id: JobId) -> int:
        """Return the retries that a job has spent."""
        return int(tables.job(self.db, job_id).retry_count)

    def end_of(self, pod: str) -> tuple[str, str]:
        """Return what the worker of a pod ended as, and why; waits until it has ended."""
        query = (
            "SELECT status, stop_reason FROM worker_nodes WHERE pod_name = :pod AND stop_reason IS NOT NULL"
        )
        wait_until(lambda: tables.fetch(self.db, query, pod=pod))
        (row, *_) = tables.fetch(self.db, query, pod=pod)
        return str(row.status), str(row.stop_reason)


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
