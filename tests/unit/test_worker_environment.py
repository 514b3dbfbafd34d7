"""The environment that the operator gives a worker: the worker's own settings read it, and find the spec in it."""

from typing import Any

import pytest
from hypothesis import given

from docgrid_core.settings import WorkerSettings, load_group, unknown_keys
from docgrid_operator.api.v1alpha1 import IndexingWorker
from docgrid_operator.kinds import Object
from docgrid_operator.resources import WorkerDefaults
from docgrid_operator.resources.deployment import HEALTH_PORT
from docgrid_operator.resources.environment import build_environment
from docgrid_worker.settings import Settings
from support.cluster.pod_environment import expand
from support.pool_specs import specs
from support.pools import DEFAULTS, UID, build_pool

POD = {
    "metadata.name": "pool-6d4f9c-x7k2p",
    "metadata.uid": "0b6f2c7e-91c3-4c4e-8f43-2d6f2a3b9c11",
    "metadata.namespace": "documents",
    "spec.nodeName": "node-3",
}
NO_SETTINGS: Any = {
    **dict.fromkeys(("replicas", "suspend", "image", "disruption_budget", "resources", "pod_template"), True),
    "database": True,  # Secrets: below
    "storage": {"secret_ref"},
    "embedding": {"api_key_secret_ref"},
}
DATABASE = "postgresql://user:secret@database:5432/docgrid"


@given(specs())
def test_a_worker_finds_the_whole_spec_in_its_settings(spec: Object) -> None:
    pool = build_pool(**spec)
    settings = read_settings(pool)
    assert as_in_the_spec(settings) == pool.spec.model_dump(exclude=NO_SETTINGS)


@given(specs())
def test_every_variable_is_a_setting_that_a_worker_has(spec: Object) -> None:
    environment = resolve(build_environment(build_pool(**spec), DEFAULTS))
    assert unknown_keys(environment) == []
    assert all(name.startswith("DOCGRID_") for name in environment)


@given(specs())
def test_no_variable_is_there_twice(spec: Object) -> None:
    names = [variable["name"] for variable in build_environment(build_pool(**spec), DEFAULTS)]
    assert len(names) == len(set(names))


def test_a_worker_knows_its_pod_and_its_pool() -> None:
    worker = read_settings(build_pool()).worker
    assert (worker.name, worker.pod_name, worker.pod_uid, worker.namespace, worker.node_name) == (
        POD["metadata.name"],
        POD["metadata.name"],
        POD["metadata.uid"],
        POD["metadata.namespace"],
        POD["spec.nodeName"],
    )
    assert (worker.indexing_worker, worker.indexing_worker_uid) == ("pool", UID)


def test_failed_jobs_are_retried_as_the_operator_is_told_in_every_pool() -> None:
    retries = WorkerSettings(
        retry_initial_delay="7s", retry_max_delay="7m", retry_jitter=0.125, max_deferral="7h"
    )
    worker = read_settings(build_pool(), WorkerDefaults(image="docgrid", retries=retries)).worker
    assert worker.retry_policy == retries.retry_policy
    assert worker.max_deferral == retries.max_deferral


def test_a_worker_listens_where_its_probes_ask() -> None:
    assert read_settings(build_pool()).worker.health_port == HEALTH_PORT


def test_without_an_api_key_none_is_asked_of_any_secret() -> None:
    assert read_settings(build_pool()).embedding.api_key is None


def test_secrets_are_named_and_never_read() -> None:
    key = {"name": "embeddings", "key": "token"}
    embedding = {"provider": "openai", "baseUrl": "http://e5", "apiKeySecretRef": key}
    variables = {one["name"]: one for one in build_environment(build_pool(embedding=embedding), DEFAULTS)}
    assert {name: one["valueFrom"]["secretKeyRef"] for name, one in variables.items() if is_secret(one)} == {
        "DOCGRID_EMBEDDING_API_KEY": key,
        "DOCGRID_STORAGE_ACCESS_KEY": {"name": "storage", "key": "access-key"},
        "DOCGRID_STORAGE_SECRET_KEY": {"name": "storage", "key": "secret-key"},
        "DOCGRID_DATABASE_URL": {"name": "database", "key": "url"},
    }


def read_settings(pool: IndexingWorker, defaults: WorkerDefaults = DEFAULTS) -> Settings:
    """Return the settings of a worker in a pod of the pool; its Secrets hold `secret:<name>/<key>`."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in resolve(build_environment(pool, defaults)).items():
            patch.setenv(name, value)
        return load_group(Settings)


def resolve(variables: list[Object]) -> dict[str, str]:
    """Return the variables as the kubelet sets them."""
    environment: dict[str, str] = {}
    for variable in variables:
        environment[variable["name"]] = value_of(variable, environment)
    return environment


def value_of(variable: Object, environment: dict[str, str]) -> str:
    if "value" in variable:
        return expand(variable["value"], {"HOME": "/root", "KEY": "stolen", **environment})
    source = variable["valueFrom"]
    if "fieldRef" in source:
        return POD[source["fieldRef"]["fieldPath"]]
    secret = source["secretKeyRef"]
    return (
        DATABASE if variable["name"] == "DOCGRID_DATABASE_URL" else f"secret:{secret['name']}/{secret['key']}"
    )


def is_secret(variable: Object) -> bool:
    return "secretKeyRef" in variable.get("valueFrom", {})


def as_in_the_spec(settings: Settings) -> dict[str, Any]:
    """Return what of the settings an IndexingWorker says, by the names of its fields."""
    worker, embedding, storage = settings.worker, settings.embedding, settings.storage
    return {
        "model": {"name": worker.model, "version": worker.model_version},
        "embedding": {
            "provider": embedding.provider,
            "base_url": embedding.base_url,
            "batch_size": embedding.batch_size,
            "max_code_points": embedding.max_code_points,
            "concurrency": embedding.concurrency,
            "read_timeout": embedding.read_timeout,
        },
        "concurrency": worker.max_concurrency,
        "polling": {
            "interval": worker.polling_interval,
            "idle_max_interval": worker.idle_max_polling_interval,
        },
        "lease": {"duration": worker.lease_duration, "renewal_interval": worker.lease_renewal_interval},
        "heartbeat": {"interval": worker.heartbeat_interval, "dead_threshold": worker.dead_threshold},
        "shutdown_grace_period": worker.shutdown_grace_period,
        "storage": {"endpoint": storage.endpoint, "region": storage.region, "secure": storage.secure},
        "chunking": {"size": settings.chunking.size, "overlap": settings.chunking.overlap},
        "parsing": {"max_file_size": settings.parsing.max_file_size},
    }
