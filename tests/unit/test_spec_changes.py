"""A change of an IndexingWorker is seen in its children in one place, and in no other."""

from copy import deepcopy
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest

from docgrid_operator.api.v1alpha1 import IndexingWorker
from docgrid_operator.api.v1alpha1.indexing_worker import IndexingWorkerSpec
from docgrid_operator.api.v1alpha1.model import ApiModel
from docgrid_operator.kinds import CONFIG_HASH_ANNOTATION, RESTART_ANNOTATION, Object
from support.pools import BUDGET, REPLICAS, SMALLEST_SPEC, TEMPLATE, build_pool, children, differing, template

# Where a change of each field of the spec is to be seen; a field that is missing here fails the test below.
CHANGES: dict[str, tuple[Any, str]] = {
    "replicas": (7, REPLICAS),
    "suspend": (True, REPLICAS),
    "image": ("another:2", TEMPLATE),
    "model.name": ("another", TEMPLATE),
    "model.version": ("2", TEMPLATE),
    "embedding.provider": ("builtin", TEMPLATE),
    "embedding.baseUrl": ("http://another:8000", TEMPLATE),
    "embedding.apiKeySecretRef.name": ("another", TEMPLATE),
    "embedding.apiKeySecretRef.key": ("another", TEMPLATE),
    "embedding.batchSize": (7, TEMPLATE),
    "embedding.maxCodePoints": (7, TEMPLATE),
    "embedding.concurrency": (7, TEMPLATE),
    "embedding.readTimeout": ("7s", TEMPLATE),
    "concurrency": (7, TEMPLATE),
    "polling.interval": ("7s", TEMPLATE),
    "polling.idleMaxInterval": ("17s", TEMPLATE),
    "lease.duration": ("7m", TEMPLATE),
    "lease.renewalInterval": ("7s", TEMPLATE),
    "heartbeat.interval": ("7s", TEMPLATE),
    "heartbeat.deadThreshold": ("17s", TEMPLATE),
    "shutdownGracePeriod": ("7s", TEMPLATE),
    "database.secretRef.name": ("another", TEMPLATE),
    "database.secretRef.key": ("another", TEMPLATE),
    "storage.endpoint": ("another:9000", TEMPLATE),
    "storage.region": ("another", TEMPLATE),
    "storage.secure": (False, TEMPLATE),
    "storage.secretRef.name": ("another", TEMPLATE),
    "storage.secretRef.accessKeyKey": ("another", TEMPLATE),
    "storage.secretRef.secretKeyKey": ("another", TEMPLATE),
    "chunking.size": (700, TEMPLATE),
    "chunking.overlap": (7, TEMPLATE),
    "parsing.maxFileSize": (7, TEMPLATE),
    "disruptionBudget.minAvailable": (1, BUDGET),
    "disruptionBudget.maxUnavailable": (1, BUDGET),
    "resources": ({"limits": {"memory": "1Gi"}}, TEMPLATE),
    "podTemplate": ({"spec": {"hostname": "another"}}, TEMPLATE),
}
SETTINGS_OF_THE_POD = ("image", "resources", "podTemplate")
BEFORE: Object = {
    **SMALLEST_SPEC,
    "embedding": {**SMALLEST_SPEC["embedding"], "apiKeySecretRef": {"name": "key"}},
    "disruptionBudget": None,
}


def test_every_field_of_the_spec_is_in_the_table_of_changes() -> None:
    assert sorted(leaves(IndexingWorkerSpec)) == sorted(CHANGES)


@pytest.mark.parametrize("field", CHANGES)
def test_a_change_of_one_field_is_seen_in_its_one_place_and_nowhere_else(field: str) -> None:
    value, place = CHANGES[field]
    before, after = (children(build_pool(**spec)) for spec in (BEFORE, with_change(BEFORE, field, value)))
    assert differing(before, after) == {place}


@pytest.mark.parametrize("field", [name for name, (_, place) in CHANGES.items() if place == TEMPLATE])
def test_the_config_hash_is_that_of_the_settings(field: str) -> None:
    value, _ = CHANGES[field]
    before, after = (build_pool(**spec) for spec in (BEFORE, with_change(BEFORE, field, value)))
    assert (config_hash(before) == config_hash(after)) == (field in SETTINGS_OF_THE_POD)


def test_a_restart_annotation_changes_the_pod_template_and_another_annotation_nothing() -> None:
    before = children(build_pool())
    restarted = children(build_pool(annotations={RESTART_ANNOTATION: "now"}))
    assert differing(before, restarted) == {TEMPLATE}
    assert before == children(build_pool(annotations={"docgrid.dev/other": "now"}))


def config_hash(pool: IndexingWorker) -> str:
    return str(template(pool)["metadata"]["annotations"][CONFIG_HASH_ANNOTATION])


def with_change(spec: Object, field: str, value: Any) -> Object:
    """Return the spec with another value in a field, named by its path."""
    changed = deepcopy(spec)
    *parents, last = field.split(".")
    place = changed
    for name in parents:
        place[name] = place.get(name) or {}
        place = place[name]
    place[last] = value
    return changed


def leaves(model: type[ApiModel], path: str = "") -> list[str]:
    """Return the paths of all fields of a model that hold no other model."""
    found = []
    for name, field in model.model_fields.items():
        here = f"{path}{field.alias or name}"
        inner = model_in(field.annotation)
        found += leaves(inner, f"{here}.") if inner else [here]
    return found


def model_in(annotation: Any) -> type[ApiModel] | None:
    kinds = get_args(annotation) if get_origin(annotation) in {Union, UnionType} else (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, ApiModel)), None)
