"""Names, labels and owner of the children of an IndexingWorker."""

from docgrid_operator.api.v1alpha1 import IndexingWorker
from docgrid_operator.kinds import (
    API_VERSION,
    FIELD_MANAGER,
    INDEXING_WORKER,
    MANAGED_BY_LABEL,
    NAME_LABEL,
    POOL_LABEL,
    Object,
)


def selector(pool_name: str) -> dict[str, str]:
    """Return the label by which the pods of a pool are found; it must never change for a Deployment."""
    return {POOL_LABEL: pool_name}


def build_labels(pool_name: str) -> dict[str, str]:
    """Return the labels of every child and of its pods."""
    return {NAME_LABEL: "docgrid-worker", MANAGED_BY_LABEL: FIELD_MANAGER, **selector(pool_name)}


def build_metadata(pool: IndexingWorker) -> Object:
    """Return the metadata of a child: the pool's name, our labels, and the pool as its controller.

    The garbage collector deletes the child with its owner, whether or not the operator is there to see it.
    """
    return {
        "name": pool.name,
        "namespace": pool.namespace,
        "labels": build_labels(pool.name),
        "ownerReferences": [
            {
                "apiVersion": API_VERSION,
                "kind": INDEXING_WORKER.name,
                "name": pool.name,
                "uid": pool.uid,
                "controller": True,
            }
        ],
    }
