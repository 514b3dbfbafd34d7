"""The chart, offline: what it renders, what it refuses, and that it agrees with what it is made from.

A golden file is what a person reviews when the chart changes; `DOCGRID_WRITE_GOLDEN=1` writes them anew. A case is a
folder with a `values.yaml`.
"""

import json
import os
from dataclasses import replace

import pytest
import yaml

from support.bad_values import BAD, Bad
from support.chart import (
    CASES,
    CHART,
    DATABASE,
    GOLDEN,
    MANIFESTS,
    POOL,
    Object,
    by_template,
    objects_of,
    only,
    parse,
    pods,
    release_of,
    render,
    render_objects,
    values_of,
)
from support.cluster.fixtures import CRDS
from support.cluster.helm import Helm

COPIES = ("templates/crds/", "templates/dashboard.yaml")
"""Templates whose text is that of a file, which other tests compare."""


@pytest.mark.parametrize("case", CASES)
def test_a_release_renders_to_its_golden_file(case: str, helm: Helm) -> None:
    rendered = render(helm, values_of(case), release=release_of(case))
    written = "".join(
        f"---\n# Source: {template}\n{text.rstrip()}\n"
        for template, text in by_template(rendered)
        if not template.startswith(COPIES)
    )
    golden = GOLDEN / case / "rendered.yaml"
    if os.environ.get("DOCGRID_WRITE_GOLDEN") == "1":
        golden.write_text(written)
    assert written == golden.read_text(), "if that is as it should be: DOCGRID_WRITE_GOLDEN=1 writes it"


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_no_fault_with_it(case: str, helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", str(CHART), "--strict", values=values_of(case)).out


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_refusal_names_the_value_and_the_rule(bad: Bad, helm: Helm) -> None:
    refusal = helm.attempt("template", "docgrid", str(CHART), values=bad.values)
    assert refusal.code == 1
    assert any(bad.path in line and bad.rule in line for line in refusal.err.splitlines()), refusal.err


@pytest.mark.parametrize("case", CASES)
def test_every_name_holds_the_release_and_fits_into_a_label(case: str, helm: Helm) -> None:
    for found in objects_of(helm, case):
        name, kind = found["metadata"]["name"], found["kind"]
        if kind in {"CustomResourceDefinition", "IndexingWorker"}:
            continue
        own = name.removeprefix("search:")  # which is said of what lies outside of the namespace
        assert len(own) <= 63
        assert own.startswith(release_of(case))


@pytest.mark.parametrize("case", CASES)
def test_no_two_objects_are_the_same_one(case: str, helm: Helm) -> None:
    found = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in objects_of(helm, case)
    ]
    assert len(set(found)) == len(found)


def test_the_operators_rights_are_those_that_it_was_tested_with(helm: Helm) -> None:
    rules = only(parse((MANIFESTS / "rbac.yaml").read_text()), "Role")["rules"]
    assert only(objects_of(helm, "default"), "Role")["rules"] == rules
    everywhere = objects_of(helm, "all-namespaces")
    assert only(everywhere, "ClusterRole")["rules"] == rules
    assert not [each for each in everywhere if each["kind"] in {"Role", "RoleBinding"}]
    roles = [each for each in objects_of(helm, "everything") if each["kind"] == "Role"]
    assert [role["metadata"].get("namespace") for role in roles] == [None, "team-a", "team-b"]
    assert all(role["rules"] == rules for role in roles)


@pytest.mark.parametrize("case", ["default", "everything", "odd-but-legal"])
def test_nothing_is_cluster_wide_but_the_kinds(case: str, helm: Helm) -> None:
    assert not [each["kind"] for each in objects_of(helm, case) if each["kind"].startswith("Cluster")]


def test_the_kinds_are_those_of_this_release(helm: Helm) -> None:
    for keep in (True, False):
        rendered = render_objects(helm, {**DATABASE, "crds": {"keep": keep}})
        found = [each for each in rendered if each["kind"] == "CustomResourceDefinition"]
        policies = {each["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for each in found}
        assert policies == {"keep" if keep else None}
        specs = {each["metadata"]["name"]: each["spec"] for each in found}
        made = [yaml.safe_load(path.read_text()) for path in CRDS.glob("*.yaml")]
        assert specs == {each["metadata"]["name"]: each["spec"] for each in made}


def test_the_install_manifests_are_a_release_with_the_default_values(helm: Helm) -> None:
    made = parse((MANIFESTS / "install.yaml").read_text())
    rendered = render_objects(helm, {**DATABASE, "crds": {"keep": False}}, "--no-hooks")
    assert [without_labels(each) for each in made] == [without_labels(each) for each in rendered]
    assert not any("Helm" in each["metadata"]["labels"].values() for each in made)


def without_labels(found: Object) -> Object:
    return {**found, "metadata": {**found["metadata"], "labels": {}}}


def test_a_pool_without_a_database_has_the_operators(helm: Helm) -> None:
    own = {**POOL, "database": {"secretRef": {"name": "own"}}}
    values = {"database": {"secretName": "s", "secretKey": "k"}, "indexingWorkers": {"a": POOL, "b": own}}
    pools = {
        each["metadata"]["name"]: each["spec"]
        for each in render_objects(helm, values)
        if each["kind"] == "IndexingWorker"
    }
    assert pools == {"a": {**POOL, "database": {"secretRef": {"name": "s", "key": "k"}}}, "b": own}


def test_the_migrations_may_have_a_role_of_their_own(helm: Helm) -> None:
    found = {}
    for name in ("", "owner"):
        values = {
            "database": {"secretName": "app", "secretKey": "app-url"},
            "migrations": {"secretName": name},
        }
        spec = only(render_objects(helm, values), "Deployment")["spec"]["template"]["spec"]
        (init,), (operator,) = spec["initContainers"], spec["containers"]
        assert init["command"] == ["docgrid", "migrate"]
        assert secret_of(operator) == ("app", "app-url")
        found[name] = secret_of(init)
    assert found == {"": ("app", "app-url"), "owner": ("owner", "url")}


def secret_of(container: Object) -> tuple[str, str]:
    (reference,) = [
        each["valueFrom"]["secretKeyRef"]
        for each in container["env"]
        if each["name"] == "DOCGRID_DATABASE_URL"
    ]
    return reference["name"], reference["key"]


def test_the_dashboard_is_the_file(helm: Helm) -> None:
    (data,) = only(objects_of(helm, "everything"), "ConfigMap")["data"].values()
    assert json.loads(data) == json.loads((CHART / "files" / "dashboard.json").read_text())


def test_the_operator_is_scraped_once(helm: Helm) -> None:
    for services, expected in ((False, {"docgrid-workers", "docgrid-operator"}), (True, {"docgrid-workers"})):
        metrics = {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": services}}
        found = render_objects(helm, {**DATABASE, "metrics": metrics})
        assert {each["metadata"]["name"] for each in found if each["kind"] == "PodMonitor"} == expected


@pytest.mark.parametrize("case", CASES)
def test_every_container_is_restricted_and_has_a_place_to_write(case: str, helm: Helm) -> None:
    for pod in pods(objects_of(helm, case)):
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]
        for container in (*pod.get("initContainers", []), *pod["containers"]):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]  # noqa: S108


def test_helm_test_proves_each_pool_by_a_document_or_asks_the_database_alone(helm: Helm) -> None:
    whole, parts = ["docgrid", "doctor", "--document"], ["docgrid", "doctor"]
    for case, expected in (
        ("default", {"docgrid-test": ["docgrid", "models", "list"]}),
        ("everything", {f"docgrid-test-{pool}": whole for pool in ("hosted", "small")}),
    ):
        assert commands_of_tests(objects_of(helm, case)) == expected
    idle = {"off": {**POOL, "suspend": True}, "none": {**POOL, "replicas": 0}, "one": {**POOL, "replicas": 1}}
    found = commands_of_tests(render_objects(helm, {**DATABASE, "indexingWorkers": idle}))
    assert found == {"docgrid-test-off": parts, "docgrid-test-none": parts, "docgrid-test-one": whole}


def commands_of_tests(objects: list[Object]) -> dict[str, list[str]]:
    """Return what the pods of `helm test` run."""
    return {
        each["metadata"]["name"]: each["spec"]["containers"][0]["command"]
        for each in objects
        if each["kind"] == "Pod"
    }


def test_the_namespace_is_said_where_it_matters(helm: Helm) -> None:
    elsewhere = render_objects(replace(helm, namespace="other"), values_of("all-namespaces"))
    binding = only(elsewhere, "ClusterRoleBinding")
    assert binding["metadata"]["name"] == "other:docgrid-operator"
    assert [subject["namespace"] for subject in binding["subjects"]] == ["other"]
