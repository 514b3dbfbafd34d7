"""The chart agrees with what it is about: the operator's settings, its metrics, the schema, the version."""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from chart_page import list_values
from docgrid_core.jobs import StopReason
from docgrid_core.settings import load_group
from docgrid_operator.settings import Settings
from settings_page import SHOWN
from support.chart import CHART, DATABASE, Object, environment, objects_of, only, render_objects
from support.cluster.helm import Helm

GUIDE = CHART.parent.parent / "docs" / "operations" / "install.md"
OWN = "<DOCGRID_OPERATOR_NAMESPACE>"
NAMESPACES = {
    "default": (OWN,),
    "everything": (OWN, "team-a", "team-b"),
    "all-namespaces": None,
    "odd-but-legal": (OWN, "default"),
}
"""What the operator looks after, by golden file."""
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}

_METRIC = re.compile(r"\bdocgrid_[a-z_]+")


def test_the_default_values_are_the_operators_own(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    given = environment(objects_of(helm, "default"))
    needed = {"DOCGRID_DATABASE_URL", *(f"DOCGRID_OPERATOR_{name}" for name in ("NAMESPACE", "WORKER_IMAGE"))}
    needed.add("DOCGRID_OPERATOR_DEPLOYMENT_NAME")
    assert read_settings(given, monkeypatch) == read_settings(
        {name: given[name] for name in needed}, monkeypatch
    )


@pytest.mark.parametrize("case", NAMESPACES)
def test_the_operator_knows_every_variable_and_takes_it(
    case: str, helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = environment(objects_of(helm, case))
    known = {
        f"{section.model_config['env_prefix']}{name.upper()}"
        for section in SHOWN
        for name in section.model_fields
    }
    assert {name for name in given if name.startswith("DOCGRID_")} <= known
    assert read_settings(given, monkeypatch).operator.namespaces == NAMESPACES[case]


def read_settings(given: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    with monkeypatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("DOCGRID_"):
                patch.delenv(name)
        for name, value in given.items():
            patch.setenv(name, value)
        return load_group(Settings)


def test_every_value_has_a_schema_and_nothing_else_has() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = {value.path for value in list_values((CHART / "values.yaml").read_text())}
    described = set(schema_paths(schema, schema)) - {"global"}  # which helm adds for a chart of charts
    assert values <= described
    assert not [
        path
        for path in described
        if not any(f"{path}.".startswith(f"{value}.") for value in values)
        and not any(value.startswith(f"{path}.") for value in values)
    ]


def schema_paths(node: Object, root: Object, path: str = "") -> Iterator[str]:
    """Yield the path of every property."""
    if "$ref" in node:
        node = root["definitions"][node["$ref"].rpartition("/")[2]]
    for name, part in node.get("properties", {}).items():
        inner = f"{path}.{name}" if path else name
        yield inner
        yield from schema_paths(part, root, inner)


def test_the_values_of_the_guide_are_accepted(helm: Helm) -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    values = [block for block in map(yaml.safe_load, blocks) if "kind" not in block]
    assert len(values) == 3
    for given in values:
        render_objects(helm, {**DATABASE, **given})


def test_versions_are_those_of_the_distribution() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((CHART.parent.parent / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_alerts_and_dashboard_name_only_what_is_exported(helm: Helm) -> None:
    exported = set(exported_names())
    rule = only(objects_of(helm, "everything"), "PrometheusRule")
    alerts = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    dashboard = json.loads((CHART / "files" / "dashboard.json").read_text())
    targets = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for expression in (*(alert["expr"] for alert in alerts), *targets):
        assert set(_METRIC.findall(expression)) <= exported, expression
        assert _METRIC.search(expression)
    told = " ".join(text for alert in alerts for text in alert["annotations"].values())
    assert set(_METRIC.findall(told)) <= exported
    (ends,) = [alert["expr"] for alert in alerts if alert["alert"] == "DocGridWorkersDie"]
    (reasons,) = re.findall(r'reason=~"([^"]+)"', ends)
    assert set(reasons.split("|")) <= set(StopReason)


def exported_names() -> Iterator[str]:
    """Yield the names of the samples of all metrics of operator and workers."""
    for module in ("docgrid_operator.metrics", "docgrid_worker.metrics"):
        for metric in vars(import_module(module)).values():
            if isinstance(metric, MetricWrapperBase):
                (family,) = metric.describe()
                yield from (f"{family.name}{suffix}" for suffix in SUFFIXES.get(family.type, ("",)))
