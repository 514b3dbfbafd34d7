"""The models of the operator's API: defaults from the workers' settings, rules, and the schema made of them."""

import copy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import generate_crds
from crd_schema import build_schema
from docgrid_core.settings import (
    ChunkingSettings,
    EmbeddingSettings,
    ParsingSettings,
    Section,
    StorageSettings,
    WorkerSettings,
)
from docgrid_operator.api.v1alpha1 import IndexingJob, IndexingWorker, InvalidObject
from docgrid_operator.api.v1alpha1.model import ApiModel
from docgrid_operator.resources.environment import build_environment
from support.bad_manifests import JOB, POOL
from support.pools import DEFAULTS

Schema = dict[str, Any]
DEFINITIONS = {
    definition.kind.name: generate_crds.build_definition(definition)
    for definition in generate_crds.DEFINITIONS
}
ROOTS = {kind: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] for kind, crd in DEFINITIONS.items()}


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every schema within a schema, with its path."""
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from walk(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from walk(schema[name], f"{path}[]")


class Undescribed(ApiModel):
    """A model with a field that nobody described."""

    field: int = 1


ALL = [(f"{kind}{path}", schema) for kind, root in ROOTS.items() for path, schema in walk(root)]


@pytest.mark.parametrize(
    "section", [WorkerSettings, ChunkingSettings, ParsingSettings, EmbeddingSettings, StorageSettings]
)
def test_the_workers_of_a_pool_that_says_nothing_have_the_defaults_of_the_settings(
    section: type[Section],
) -> None:
    prefix = section.model_config["env_prefix"]
    told = {
        variable["name"].removeprefix(prefix).lower(): variable["value"]
        for variable in build_environment(IndexingWorker.parse(POOL), DEFAULTS)
        if variable["name"].startswith(prefix) and "value" in variable
    }
    secrets = {"access_key": "a", "secret_key": "s"} if section is StorageSettings else {}
    of_the_pool = {"indexing_worker", "model", "base_url", "endpoint", "secure"} & set(told)
    worker = section(**(told | secrets))
    default = section(**({name: told[name] for name in of_the_pool} | secrets))
    assert worker == default
    assert len(told) > len(of_the_pool), "nothing was compared"


def test_a_changed_default_of_a_setting_changes_the_schema() -> None:
    changed = f"""
from datetime import timedelta
from docgrid_core.settings import WorkerSettings
WorkerSettings.model_fields["lease_duration"].default = timedelta(minutes=7)
WorkerSettings.model_fields["max_concurrency"].default = 3
import sys; sys.path.insert(0, {str(Path(generate_crds.__file__).parent)!r})
import generate_crds
print(next(text for path, text in generate_crds.build_files().items() if "indexingworkers" in path.name))
"""
    done = subprocess.run([sys.executable, "-c", changed], capture_output=True, text=True, check=True)
    crd = yaml.safe_load(done.stdout)
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert spec["lease"]["properties"]["duration"]["default"] == "7m"
    assert spec["concurrency"]["default"] == 3


def test_the_schema_is_structural() -> None:
    refused = {"$ref", "anyOf", "oneOf", "allOf", "$defs", "title", "const"}
    assert [path for path, schema in ALL if schema.keys() & refused] == []
    assert [path for path, schema in ALL if schema.get("additionalProperties") is False] == []
    assert [
        path for path, schema in ALL if "type" not in schema and "x-kubernetes-int-or-string" not in schema
    ] == []


def test_every_field_is_described() -> None:
    # Items have the list's description, an object's metadata the apiserver's.
    silent = [path for path, schema in ALL if not schema.get("description") and not path.endswith("[]")]
    assert silent == ["IndexingWorker.metadata", "IndexingJob.metadata"]
    with pytest.raises(ValueError, match=r"^Undescribed\.field has no description$"):
        build_schema(Undescribed)


def test_an_object_all_of_whose_fields_have_defaults_has_one() -> None:
    whole = [
        (path, schema)
        for path, schema in ALL
        if (fields := schema.get("properties")) and all("default" in field for field in fields.values())
    ]
    assert len(whole) == 5
    assert [path for path, schema in whole if schema.get("default") != {}] == []


def test_what_is_generated_is_committed_and_a_change_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["generate_crds.py", "--check"])
    assert generate_crds.main() == 0
    monkeypatch.setattr(generate_crds, "ROOT", tmp_path)
    for path, text in generate_crds.build_files().items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "crds" / "docgrid.dev_indexingjobs.yaml").write_text("changed")
    (tmp_path / "crds" / "of_another_day.yaml").write_text("left behind")
    assert generate_crds.main() == 1
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[0].rpartition("/")[2] for line in said] == [
        "docgrid.dev_indexingjobs.yaml",
        "of_another_day.yaml",
    ]


def test_an_object_is_read_whatever_it_holds_besides() -> None:
    stored = copy.deepcopy(POOL) | {"status": {"conditions": "overwritten"}, "later": 1}
    stored["metadata"] |= {
        "namespace": "docs",
        "uid": "u-1",
        "generation": 7,
        "annotations": {"a": "b"},
        "managedFields": [{}],
    }
    stored["spec"] |= {
        "fieldOfALaterRelease": True,
        "podTemplate": {"spec": {"nodeSelector": {"disk": "ssd"}}},
    }
    pool = IndexingWorker.parse(stored)
    assert (pool.name, pool.namespace, pool.uid, pool.generation) == ("small", "docs", "u-1", 7)
    assert pool.annotations == {"a": "b"}
    assert pool.spec.pod_template == {"spec": {"nodeSelector": {"disk": "ssd"}}}
    assert pool.spec.replicas == 2


@pytest.mark.parametrize(
    ("section", "value", "said"),
    [
        ("lease", {"duration": "1m"}, "spec.lease.renewalInterval: must be less than duration"),
        ("polling", {"interval": "1h"}, "spec.polling.interval: must be at most idleMaxInterval"),
        ("heartbeat", {"interval": "0s"}, "spec.heartbeat.interval: must be greater than 0"),
        ("chunking", {"overlap": 1000}, "spec.chunking.overlap: must be less than size"),
        ("embedding", {}, "spec.embedding.baseUrl: must be the root of the server, such as"),
        ("embedding", {"baseUrl": "x"}, "spec.embedding.baseUrl: must be an http:// or https:// address"),
        ("disruptionBudget", {}, "spec.disruptionBudget: must have one of minAvailable and maxUnavailable"),
        ("disruptionBudget", {"minAvailable": []}, "spec.disruptionBudget.minAvailable: must be a number"),
        ("database", {"secretRef": {}}, "spec.database.secretRef.name: "),
        ("replicas", "3", "spec.replicas: "),
    ],
)
def test_what_is_wrong_is_named_with_its_field_and_its_rule(section: str, value: Any, said: str) -> None:
    stored = copy.deepcopy(POOL)
    stored["spec"][section] = value
    with pytest.raises(InvalidObject) as refused:
        IndexingWorker.parse(stored)
    assert str(refused.value).startswith(said)


def test_an_object_without_a_spec_or_with_a_long_name_is_none_of_ours() -> None:
    with pytest.raises(InvalidObject, match=r"^spec: "):
        IndexingWorker.parse({"metadata": {"name": "small"}})
    with pytest.raises(InvalidObject, match=r"^metadata: metadata.name must have at most 50 characters$"):
        IndexingWorker.parse(POOL | {"metadata": {"name": "a" * 51}})


def test_a_view_tells_by_its_name_which_job_it_shows() -> None:
    assert IndexingJob.parse(JOB).spec.job_id == 42
    with pytest.raises(InvalidObject, match=r"must be job-<spec\.jobId>"):
        IndexingJob.parse(JOB | {"metadata": {"name": "job-43"}})
