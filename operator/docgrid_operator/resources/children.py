"""All children of an IndexingWorker, in the order in which they are written; the reconciler calls it."""

from docgrid_operator.api.v1alpha1 import IndexingWorker
from docgrid_operator.kinds import DEPLOYMENT, DISRUPTION_BUDGET, SERVICE_ACCOUNT, Kind, Object
from docgrid_operator.resources.deployment import build_deployment
from docgrid_operator.resources.environment import WorkerDefaults
from docgrid_operator.resources.metadata import build_metadata, selector

__all__ = ["WorkerDefaults", "build_children", "build_disruption_budget", "build_service_account"]


def build_children(pool: IndexingWorker, defaults: WorkerDefaults) -> dict[Kind, Object | None]:
    """Return every child as it should be; None for one that should not exist.

    The ServiceAccount comes first: without it no pod of the Deployment can be created.
    """
    return {
        SERVICE_ACCOUNT: build_service_account(pool),
        DEPLOYMENT: build_deployment(pool, defaults),
        DISRUPTION_BUDGET: build_disruption_budget(pool),
    }


def build_service_account(pool: IndexingWorker) -> Object:
    """Return the identity of the pods: workers never call the apiserver, so no token is mounted."""
    return {
        "apiVersion": SERVICE_ACCOUNT.api_version,
        "kind": SERVICE_ACCOUNT.name,
        "metadata": build_metadata(pool),
        "automountServiceAccountToken": False,
    }


def build_disruption_budget(pool: IndexingWorker) -> Object | None:
    """Return the PodDisruptionBudget that `disruptionBudget` asks for; None without one.

    Pods that are not ready may always be evicted: they do no work that a drain should wait for.
    """
    budget = pool.spec.disruption_budget
    if budget is None or (budget.min_available is None and budget.max_unavailable is None):
        return None
    bound = (
        {"maxUnavailable": budget.max_unavailable}
        if budget.max_unavailable is not None
        else {"minAvailable": budget.min_available}
    )
    return {
        "apiVersion": DISRUPTION_BUDGET.api_version,
        "kind": DISRUPTION_BUDGET.name,
        "metadata": build_metadata(pool),
        "spec": {
            **bound,
            "selector": {"matchLabels": selector(pool.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
