"""The manifests: kubectl renders and applies them, samples are accepted, and the Role is what the operator uses."""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from docgrid_core.testing import factories
from support.apiserver_proxy import ApiServerProxy, Request
from support.cluster.kubectl import Kubectl
from support.operator_site import MANIFESTS, OperatorSite
from support.races import wait_until

GUIDE = MANIFESTS.parent / "docs" / "operations" / "install.md"
SAMPLES = sorted((MANIFESTS / "samples").glob("*.yaml"))
RESTRICTED = "pod-security.kubernetes.io/warn=restricted"

Right = tuple[str, str, str]
"""API group, resource and verb."""

_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)/namespaces/[^/]+/(?P<resource>[^/]+)(?P<name>/[^/]+)?(?:/[^/]+)?"
)
_READS = {True: "watch", False: "list"}


def documents(*files: Path) -> list[dict[str, Any]]:
    return [document for file in files for document in yaml.safe_load_all(file.read_text())]


def rules() -> list[dict[str, Any]]:
    (role,) = [found for found in documents(MANIFESTS / "rbac.yaml") if found["kind"] == "Role"]
    found: list[dict[str, Any]] = role["rules"]
    return found


def test_kubectl_applies_all_of_it_in_one_go(kubectl: Kubectl, crds: None) -> None:
    said = kubectl("apply", "--server-side", "--kustomize", str(MANIFESTS)).out
    wanted = {found["metadata"]["name"] for found in documents(MANIFESTS / "install.yaml")}
    assert {line.split("/")[1].split()[0] for line in said.splitlines()} == wanted
    account = kubectl("get", "deployment", "docgrid-operator", "-o", "jsonpath={..serviceAccountName}").out
    assert kubectl("get", "serviceaccount", account, "-o", "name").out.strip() == f"serviceaccount/{account}"


def test_the_overlay_of_the_guide_changes_namespace_and_every_image(kubectl: Kubectl, tmp_path: Path) -> None:
    (overlay,) = re.findall(r"```yaml\n(apiVersion: kustomize.*?)```", GUIDE.read_text(), re.DOTALL)
    path = os.path.relpath(MANIFESTS, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(overlay.replace("../docgrid/manifests", path))
    shutil.copy(MANIFESTS / "samples" / "small-pool.yaml", tmp_path)
    made = list(yaml.safe_load_all(kubectl("kustomize", str(tmp_path)).out))
    named = [found for found in made if found["kind"] != "CustomResourceDefinition"]
    assert {found["kind"] for found in named} == {
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "Deployment",
        "IndexingWorker",
    }
    assert {found["metadata"]["namespace"] for found in named} == {"search"}
    (deployment,) = [found for found in made if found["kind"] == "Deployment"]
    images = re.findall(r"\S*docgrid:\S+", yaml.safe_dump(deployment))
    assert images == ["registry.example.com/docgrid:0.1.0"] * 3


def test_the_operators_pod_is_restricted(kubectl: Kubectl, crds: None) -> None:
    kubectl("label", "namespace", kubectl.namespace, RESTRICTED)
    assert kubectl("apply", "--server-side", "--kustomize", str(MANIFESTS)).err == ""


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_a_sample_is_accepted_as_it_is(kubectl: Kubectl, crds: None, sample: Path) -> None:
    said = kubectl("apply", "--dry-run=server", "--validate=strict", "--filename", str(sample))
    assert "indexingworker.docgrid.dev/" in said.out
    assert said.err == ""


def test_the_page_of_samples_names_each_of_them() -> None:
    page = (MANIFESTS / "samples" / "README.md").read_text()
    assert set(re.findall(r"\((\S+\.yaml)\)", page)) == {path.name for path in SAMPLES}


def test_no_right_is_unlimited_and_no_secret_is_read() -> None:
    for rule in rules():
        named = [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
        assert not any("*" in name for name in named)
        assert "secrets" not in rule["resources"]
    assert {found["kind"] for found in documents(MANIFESTS / "rbac.yaml")} == {
        "ServiceAccount",
        "Role",
        "RoleBinding",
    }


def test_every_right_is_used_and_none_is_missing(site: OperatorSite, apiserver: ApiServerProxy) -> None:
    since = site.control_plane.audit.mark()
    site.kubectl("create", "deployment", "owner", "--image=none", "--replicas=0")
    operator = site.start_ready(operator_deployment_name="owner")
    do_everything(site)
    granted = {
        (group, resource, verb)
        for rule in rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    writes = site.writes(since=since)
    assert {write.code for write in writes if write.code >= 400} <= {404, 409}
    created = {(group_of(write.resource), write.resource, "create") for write in writes if write.code == 201}
    assert set(map(right, asked_for(apiserver))) | created == granted
    assert "Forbidden" not in operator.output()


def do_everything(site: OperatorSite) -> None:
    """Have the operator do each kind of thing that it ever does."""
    # 1. Children are made, changed and deleted; an Event is written, and written again.
    site.apply_pool(disruptionBudget={"maxUnavailable": 1})
    wait_until(lambda: site.get("poddisruptionbudget") is not None)
    for replicas in (2, 3):
        site.kubectl("scale", "indexingworker", "pool", f"--replicas={replicas}")
        wait_until(lambda count=replicas: scaled_ups(site) == count - 1)  # type: ignore[misc]
    site.apply_pool()
    wait_until(lambda: site.get("poddisruptionbudget") is None)
    # 2. A view is made, changed and deleted.
    view = f"job-{factories.register(site.db).job_id}"
    wait_until(lambda: site.get("indexingjob", view) is not None)
    site.kubectl("label", "indexingjob", view, "docgrid.dev/state-", "--overwrite")
    wait_until(lambda: "docgrid.dev/state" in (site.get("indexingjob", view) or {})["metadata"]["labels"])
    site.kubectl.apply(
        {
            "apiVersion": "docgrid.dev/v1alpha1",
            "kind": "IndexingJob",
            "metadata": {"name": "job-999999"},
            "spec": {"jobId": 999999},
        }
    )
    wait_until(lambda: site.get("indexingjob", "job-999999") is None)


def asked_for(proxy: ApiServerProxy) -> list[Request]:
    """Return the requests that are for objects, not for what the apiserver serves."""
    return [request for request, _fault in proxy.asked if _PATH.fullmatch(request.path)]


def right(request: Request) -> Right:
    """Return what the apiserver asks RBAC for a request."""
    found = _PATH.fullmatch(request.path)
    assert found is not None
    verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
    reads = "get" if found["name"] else _READS[request.is_watch]
    resource = found["resource"] + ("/status" if request.path.endswith("/status") else "")
    return found["group"] or "", resource, verbs.get(request.method, reads)


def group_of(resource: str) -> str:
    (group,) = {rule["apiGroups"][0] for rule in rules() if resource in rule["resources"]}
    return str(group)


def scaled_ups(site: OperatorSite) -> int:
    fields = "involvedObject.kind=IndexingWorker,reason=ScaledUp"
    said = site.kubectl("get", "events", "--field-selector", fields, "-o", "jsonpath={.items[*].count}").out
    return int(said or 0)
