"""The Deployment of a pool: its pods, their probes and their restrictions."""

import math

from docgrid_operator.api.v1alpha1 import IndexingWorker
from docgrid_operator.kinds import CONFIG_HASH_ANNOTATION, DEPLOYMENT, RESTART_ANNOTATION, Object
from docgrid_operator.plan import digest
from docgrid_operator.resources.environment import WorkerDefaults, build_environment
from docgrid_operator.resources.metadata import build_labels, build_metadata, selector
from docgrid_operator.resources.overlay import overlay_template

CONTAINER = "worker"
HEALTH_PORT = 8080
SHUTDOWN_MARGIN = 15  # seconds between the end of the grace period and SIGKILL, for releasing what is left


def build_deployment(pool: IndexingWorker, defaults: WorkerDefaults) -> Object:
    """Return the Deployment of a pool.

    Whatever changes the container's settings changes the pod template, so the pods roll, once. `replicas` is
    always ours to write: `kubectl scale` and an HPA set it on the IndexingWorker.
    """
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.name,
        "metadata": build_metadata(pool),
        "spec": {
            "replicas": desired_replicas(pool),
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": selector(pool.name)},
            "template": _build_template(pool, defaults),
        },
    }


def desired_replicas(pool: IndexingWorker) -> int:
    """Return how many workers there should be."""
    return 0 if pool.spec.suspend else pool.spec.replicas


def _build_template(pool: IndexingWorker, defaults: WorkerDefaults) -> Object:
    container = _build_container(pool, defaults)
    annotations = {CONFIG_HASH_ANNOTATION: digest(container["env"])}
    if restart := pool.annotations.get(RESTART_ANNOTATION):
        annotations[RESTART_ANNOTATION] = restart
    template = {
        "metadata": {"labels": build_labels(pool.name), "annotations": annotations},
        "spec": {
            "serviceAccountName": pool.name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": _termination_grace_period(pool),
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
    return overlay_template(template, pool.spec.pod_template)


def _termination_grace_period(pool: IndexingWorker) -> int:
    return math.ceil(pool.spec.shutdown_grace_period.total_seconds()) + SHUTDOWN_MARGIN


def _build_container(pool: IndexingWorker, defaults: WorkerDefaults) -> Object:
    return {
        "name": CONTAINER,
        "image": pool.spec.image or defaults.image,
        "command": ["docgrid-worker"],
        "env": build_environment(pool, defaults),
        "ports": [{"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"}],
        "resources": pool.spec.resources or _default_resources(pool.spec.concurrency),
        "startupProbe": _probe("/livez", period=1, failures=90),
        "livenessProbe": _probe("/livez", period=10, failures=3),
        "readinessProbe": _probe("/servingz", period=5, failures=2),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - a volume of the pod's own
    }


def _default_resources(concurrency: int) -> Object:
    """Return room for the process, and for a parser of at most 512 MiB in each of its slots."""
    limit = 256 + 512 * concurrency
    return {
        "requests": {"cpu": "250m", "memory": "512Mi"},
        "limits": {"memory": f"{limit}Mi"},
    }


def _probe(path: str, *, period: int, failures: int) -> Object:
    return {
        "httpGet": {"path": path, "port": "health"},
        "periodSeconds": period,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }
