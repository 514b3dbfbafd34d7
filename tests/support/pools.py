"""IndexingWorkers for tests of the operator's pure parts: as the apiserver answers them, before its defaults."""

from copy import deepcopy
from typing import Any

from docgrid_core.settings import WorkerSettings
from docgrid_operator.api.v1alpha1 import IndexingWorker
from docgrid_operator.kinds import API_VERSION, DEPLOYMENT, DISRUPTION_BUDGET, INDEXING_WORKER, Kind, Object
from docgrid_operator.resources import WorkerDefaults, build_children

UID = "5f0c9a52-6f1e-4c7f-9a55-0d5b9d1f7a10"
DEFAULTS = WorkerDefaults(image="registry.example/docgrid:1.0.0", retries=WorkerSettings())

SMALLEST_SPEC: Object = {
    "model": {"name": "intfloat/multilingual-e5-small"},
    "embedding": {"provider": "openai", "baseUrl": "http://embeddings:8000"},
    "database": {"secretRef": {"name": "database"}},
    "storage": {"endpoint": "minio:9000", "secretRef": {"name": "storage"}},
}


def build_manifest(
    name: str = "pool",
    *,
    namespace: str = "documents",
    uid: str = UID,
    generation: int = 1,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Object:
    """Return an IndexingWorker with the smallest spec, and `spec` instead of what it holds."""
    metadata: Object = {"name": name, "namespace": namespace, "uid": uid, "generation": generation}
    return {
        "apiVersion": API_VERSION,
        "kind": INDEXING_WORKER.name,
        "metadata": {**metadata, **({"annotations": annotations} if annotations else {})},
        "spec": {**SMALLEST_SPEC, **spec},
    }


def build_pool(name: str = "pool", **changes: Any) -> IndexingWorker:
    """Return `build_manifest` of the same arguments, read as the operator reads it."""
    return IndexingWorker.parse(build_manifest(name, **changes))


TEMPLATE, REPLICAS, BUDGET, ELSEWHERE = "template", "replicas", "budget", "elsewhere"
"""The places in which the children of two pools can differ."""


def children(pool: IndexingWorker) -> dict[Kind, Any]:
    """Return every child of a pool as the operator builds it."""
    return dict(build_children(pool, DEFAULTS))


def present(all_children: dict[Kind, Any]) -> list[Object]:
    """Return the children that should exist."""
    return [child for child in all_children.values() if child is not None]


def template(pool: IndexingWorker) -> Object:
    """Return the pod template of a pool's Deployment."""
    found: Object = children(pool)[DEPLOYMENT]["spec"]["template"]
    return found


def differing(before: dict[Kind, Any], after: dict[Kind, Any]) -> set[str]:
    """Return the places in which the children of two pools differ."""
    one, other = deepcopy(before), deepcopy(after)
    places = {
        name: (one[DEPLOYMENT]["spec"].pop(name), other[DEPLOYMENT]["spec"].pop(name))
        for name in (TEMPLATE, REPLICAS)
    }
    places[BUDGET] = one.pop(DISRUPTION_BUDGET), other.pop(DISRUPTION_BUDGET)
    places[ELSEWHERE] = one, other
    return {name for name, (left, right) in places.items() if left != right}
