"""What tests see of one namespace: pools that they apply, and objects as the apiserver answers them.

The site of the operator's tests and the release of the end-to-end tests are built on it.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from docgrid_operator.kinds import CHILD_KINDS, INDEXING_JOB, INDEXING_WORKER, POD, Kind, Object
from support.cluster.control_plane import ControlPlane
from support.cluster.errors import ApiError
from support.cluster.kubectl import Kubectl
from support.races import wait_until

_RESOURCE_QUOTA = Kind("v1", "ResourceQuota", "resourcequotas")
_PATHS = {
    kind.name.lower(): f"{kind.root}/namespaces/{{}}/{kind.plural}"
    for kind in (INDEXING_WORKER, INDEXING_JOB, *CHILD_KINDS, POD, _RESOURCE_QUOTA)
}


class NamespaceObjects:
    """The objects of one namespace."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane = control_plane
        self.namespace = namespace
        self.kubectl = Kubectl(control_plane.binaries.kubectl, control_plane.kubeconfig, namespace=namespace)

    def apply_pool(self, name: str = "pool", **spec: Any) -> Object:
        """Apply an IndexingWorker for the database's model and return its manifest."""
        manifest = build_pool(name, **spec)
        self.kubectl.apply(manifest)
        return manifest

    def get(self, kind: str, name: str = "pool") -> Object | None:
        """Return an object, or None; `kind` is what kubectl calls it. Tests ask often: kubectl would be slow."""
        try:
            return self.control_plane.api.get(f"{_PATHS[kind].format(self.namespace)}/{name}")
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    def is_reconciled(self, name: str = "pool") -> bool:
        """Tell whether a pool has what it needs to run, and a status of its newest generation."""
        pool = self.get("indexingworker", name) or {}
        seen = (pool.get("status") or {}).get("observedGeneration")
        return (
            seen is not None
            and seen == pool["metadata"]["generation"]
            and self.get("deployment", name) is not None
            and self.get("serviceaccount", name) is not None
        )

    def condition(self, type_: str, name: str = "pool") -> Mapping[str, str]:
        """Return a condition of an IndexingWorker; empty if it has none."""
        status = (self.get("indexingworker", name) or {}).get("status") or {}
        return next((c for c in status.get("conditions", []) if c["type"] == type_), {})

    def wait_for_condition(
        self, type_: str, status: str, reason: str, name: str = "pool"
    ) -> Mapping[str, str]:
        """Wait until a condition has this status and reason, and return it."""
        wanted = {"status": status, "reason": reason}
        wait_until(lambda: wanted.items() <= self.condition(type_, name).items())
        return self.condition(type_, name)


def build_pool(name: str = "pool", **spec: Any) -> Object:
    """Return the manifest of a small IndexingWorker for the tests' model, with `spec` laid over its fields."""
    return {
        "apiVersion": "docgrid.dev/v1alpha1",
        "kind": "IndexingWorker",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "tiny"},
            "embedding": {"provider": "builtin"},
            "database": {"secretRef": {"name": "database"}},
            "storage": {"endpoint": "storage:9000", "secretRef": {"name": "storage"}},
            **spec,
        },
    }
