"""The chart as tests look at it: rendered offline, cut into its objects."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from support.cluster.helm import Helm, Values
from support.layers import TESTS

CHART = TESTS.parent / "helm" / "docgrid"
MANIFESTS = TESTS.parent / "manifests"
GOLDEN = TESTS / "operator" / "golden"
CASES = sorted(folder.name for folder in GOLDEN.iterdir())
"""Folders with the values of a release, and what it renders to."""
DATABASE = {"database": {"secretName": "docgrid-database"}}
"""The least that has to be said."""
POOL = {
    "model": {"name": "multilingual-e5-small"},
    "embedding": {"baseUrl": "http://embeddings:8000"},
    "storage": {"endpoint": "minio:9000", "secure": False, "secretRef": {"name": "docgrid-storage"}},
}
"""The least that a pool has to say."""

Object = dict[str, Any]

_LONGEST = "a-release-whose-name-is-exactly-as-long-as-helm-allow"
_SOURCE = re.compile(r"^---\n# Source: docgrid/(?P<template>\S+)\n", re.MULTILINE)


def render(helm: Helm, values: Values, *arguments: str, release: str = "docgrid") -> str:
    """Return what the chart renders to, tests included."""
    return helm("template", release, str(CHART), *arguments, values=values).out


def render_objects(helm: Helm, values: Values, *arguments: str, release: str = "docgrid") -> list[Object]:
    """Return the objects of a release, in helm's order."""
    return parse(render(helm, values, *arguments, release=release))


def parse(text: str) -> list[Object]:
    """Return the objects of a text."""
    return [found for found in yaml.safe_load_all(text) if found is not None]


def by_template(rendered: str) -> list[tuple[str, str]]:
    """Return the objects as texts, each with the name of its template."""
    parts = _SOURCE.split(rendered)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def only(objects: list[Object], kind: str) -> Object:
    """Return the one object of a kind."""
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def pods(objects: list[Object]) -> list[Object]:
    """Return the spec of every pod that the objects are or make."""
    templates = [each["spec"]["template"] for each in objects if each["kind"] == "Deployment"]
    return [each["spec"] for each in (*templates, *objects) if each.get("kind", "Pod") == "Pod"]


def environment(objects: list[Object]) -> Mapping[str, str]:
    """Return the operator's variables; one that comes from elsewhere stands for itself."""
    (container,) = only(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each.get("value", f"<{each['name']}>") for each in container["env"]}


def values_of(case: str) -> Object:
    """Return the values of a golden file."""
    values: Object = yaml.safe_load((GOLDEN / case / "values.yaml").read_text())
    return values


def release_of(case: str) -> str:
    """Return the name of the release of a golden file."""
    return _LONGEST if case == "odd-but-legal" else "docgrid"


def objects_of(helm: Helm, case: str, *arguments: str) -> list[Object]:
    """Return the objects of a golden file's release."""
    return render_objects(helm, values_of(case), *arguments, release=release_of(case))
