"""The kinds of Kubernetes objects that the operator knows, and the marks that it puts on them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

Object = dict[str, Any]
"""A Kubernetes object as the apiserver answers it: plain JSON."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource of the Kubernetes API."""

    api_version: str
    name: str
    plural: str

    @property
    def root(self) -> str:
        """The path under which the apiserver serves its group and version."""
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version within the group."""
        return self.api_version.rpartition("/")[2]


GROUP = "docgrid.dev"
API_VERSION = f"{GROUP}/v1alpha1"

INDEXING_WORKER = Kind(API_VERSION, "IndexingWorker", "indexingworkers")
INDEXING_JOB = Kind(API_VERSION, "IndexingJob", "indexingjobs")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
POD = Kind("v1", "Pod", "pods")
EVENT = Kind("v1", "Event", "events")

CHILD_KINDS = (SERVICE_ACCOUNT, DEPLOYMENT, DISRUPTION_BUDGET)
"""What an IndexingWorker consists of, in the order in which it is written."""

FIELD_MANAGER = "docgrid-operator"

POOL_LABEL = f"{GROUP}/indexing-worker"
MODEL_LABEL = f"{GROUP}/model"
STATE_LABEL = f"{GROUP}/state"
NAME_LABEL = "app.kubernetes.io/name"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"

RESTART_ANNOTATION = f"{GROUP}/restart"
CONFIG_HASH_ANNOTATION = f"{GROUP}/config-hash"
APPLIED_ANNOTATION = f"{GROUP}/applied"
RETRY_ANNOTATION = f"{GROUP}/retry"
CANCEL_ANNOTATION = f"{GROUP}/cancel"


class Key(NamedTuple):
    """Which IndexingWorker: what the work queue holds."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def key_of(obj: Mapping[str, Any]) -> Key:
    """Return namespace and name of an object."""
    return Key(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])


def controller_uid(obj: Mapping[str, Any]) -> str:
    """Return the uid of the object's controller; empty if it has none."""
    owners = obj["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def resource_version(obj: Mapping[str, Any]) -> int:
    """Return the object's resourceVersion as the number by which versions of one object are ordered."""
    return int(obj["metadata"].get("resourceVersion") or 0)
