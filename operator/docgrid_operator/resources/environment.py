"""The environment of a worker's container: an IndexingWorker's fields as the settings of `docgrid_core`."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from docgrid_core.durations import format_duration
from docgrid_core.settings import WorkerSettings
from docgrid_operator.api.v1alpha1 import IndexingWorker
from docgrid_operator.kinds import Object

_POD_FIELDS = {
    "NAME": "metadata.name",
    "POD_NAME": "metadata.name",
    "POD_UID": "metadata.uid",
    "NAMESPACE": "metadata.namespace",
    "NODE_NAME": "spec.nodeName",
}


@dataclass(frozen=True, slots=True)
class WorkerDefaults:
    """What all pools of an installation have in common: the image, and how failed jobs are retried."""

    image: str
    retries: WorkerSettings


def build_environment(pool: IndexingWorker, defaults: WorkerDefaults) -> list[Object]:
    """Return the variables of the container, in a fixed order."""
    return [
        *_pod_variables(),
        *_variables("DOCGRID_WORKER", _worker_settings(pool, defaults.retries)),
        *_variables(
            "DOCGRID_CHUNKING", {"SIZE": pool.spec.chunking.size, "OVERLAP": pool.spec.chunking.overlap}
        ),
        *_variables("DOCGRID_PARSING", {"MAX_FILE_SIZE": pool.spec.parsing.max_file_size}),
        *_embedding_variables(pool),
        *_storage_variables(pool),
        _from_secret(
            "DOCGRID_DATABASE_URL", pool.spec.database.secret_ref.name, pool.spec.database.secret_ref.key
        ),
    ]


def _pod_variables() -> list[Object]:
    return [
        {"name": f"DOCGRID_WORKER_{name}", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for name, path in _POD_FIELDS.items()
    ]


def _worker_settings(pool: IndexingWorker, retries: WorkerSettings) -> dict[str, Any]:
    spec = pool.spec
    return {
        "INDEXING_WORKER": pool.name,
        "INDEXING_WORKER_UID": pool.uid,
        "MODEL": spec.model.name,
        "MODEL_VERSION": spec.model.version,
        "MAX_CONCURRENCY": spec.concurrency,
        "POLLING_INTERVAL": spec.polling.interval,
        "IDLE_MAX_POLLING_INTERVAL": spec.polling.idle_max_interval,
        "LEASE_DURATION": spec.lease.duration,
        "LEASE_RENEWAL_INTERVAL": spec.lease.renewal_interval,
        "HEARTBEAT_INTERVAL": spec.heartbeat.interval,
        "DEAD_THRESHOLD": spec.heartbeat.dead_threshold,
        "SHUTDOWN_GRACE_PERIOD": spec.shutdown_grace_period,
        "RETRY_INITIAL_DELAY": retries.retry_initial_delay,
        "RETRY_MAX_DELAY": retries.retry_max_delay,
        "RETRY_JITTER": retries.retry_jitter,
        "MAX_DEFERRAL": retries.max_deferral,
    }


def _embedding_variables(pool: IndexingWorker) -> list[Object]:
    embedding = pool.spec.embedding
    variables = _variables(
        "DOCGRID_EMBEDDING",
        {
            "PROVIDER": embedding.provider,
            "BASE_URL": embedding.base_url,
            "BATCH_SIZE": embedding.batch_size,
            "MAX_CODE_POINTS": embedding.max_code_points,
            "CONCURRENCY": embedding.concurrency,
            "READ_TIMEOUT": embedding.read_timeout,
        },
    )
    key = embedding.api_key_secret_ref
    return (
        variables
        if key is None
        else [*variables, _from_secret("DOCGRID_EMBEDDING_API_KEY", key.name, key.key)]
    )


def _storage_variables(pool: IndexingWorker) -> list[Object]:
    storage = pool.spec.storage
    secret = storage.secret_ref
    return [
        *_variables(
            "DOCGRID_STORAGE",
            {"ENDPOINT": storage.endpoint, "REGION": storage.region, "SECURE": storage.secure},
        ),
        _from_secret("DOCGRID_STORAGE_ACCESS_KEY", secret.name, secret.access_key_key),
        _from_secret("DOCGRID_STORAGE_SECRET_KEY", secret.name, secret.secret_key_key),
    ]


def _variables(prefix: str, values: dict[str, Any]) -> list[Object]:
    """Return variables with these values, none for what is not set; `$$` keeps the kubelet from expanding them."""
    return [
        {"name": f"{prefix}_{name}", "value": text.replace("$", "$$")}
        for name, value in values.items()
        if (text := _text(value))
    ]


def _text(value: Any) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _from_secret(variable: str, secret: str, key: str) -> Object:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
