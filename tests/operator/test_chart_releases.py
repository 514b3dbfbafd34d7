"""Releases of the chart on a real apiserver: accepted, installed, changed, rolled back, gone. No pod has to run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pytest
import yaml

from support.chart import CASES, CHART, DATABASE, MANIFESTS, POOL, Object, objects_of
from support.cluster.control_plane import ControlPlane
from support.cluster.fixtures import create_namespace, install_crds
from support.cluster.helm import Helm
from support.cluster.kubectl import Kubectl, Output
from support.races import wait_until

KINDS = ("crd/indexingworkers.docgrid.dev", "crd/indexingjobs.docgrid.dev")
OURS = "app.kubernetes.io/name=docgrid"


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace of a cluster, as whoever installs into it sees it."""

    helm: Helm
    kubectl: Kubectl

    @property
    def namespace(self) -> str:
        """Its name."""
        return self.kubectl.namespace

    def install(self, release: str = "docgrid", **values: Any) -> str:
        """Install a release and return what it said, once the kinds are served."""
        said = self.helm("install", release, str(CHART), values={**DATABASE, **values}).out
        self.kubectl("wait", "--for=condition=Established", "--timeout=60s", *KINDS)
        return said

    def attempt(self, release: str = "docgrid", **values: Any) -> Output:
        """Try to install a release."""
        return self.helm.attempt("install", release, str(CHART), values={**DATABASE, **values})

    def upgrade(self, *arguments: str, **values: Any) -> None:
        """Change the release."""
        self.helm("upgrade", "docgrid", str(CHART), *arguments, values={**DATABASE, **values})

    def names(self, kinds: str) -> set[str]:
        """Return the names of our objects."""
        return set(self.kubectl("get", kinds, "--selector", OURS, "--output=name").out.split())

    def pool(self, name: str) -> Object | None:
        """Return the spec of an IndexingWorker."""
        said = self.kubectl("get", "indexingworker", name, "--ignore-not-found", "--output=json").out
        return json.loads(said)["spec"] if said else None


@pytest.fixture
def places(own_plane: ControlPlane, helm: Helm) -> Iterator[list[Place]]:
    """Yield two namespaces of a cluster that does not know our kinds."""
    own_plane.kubectl()("delete", *KINDS, "--ignore-not-found", "--wait=true")
    made = []
    for _ in range(2):
        name = f"test-{uuid4().hex[:12]}"
        create_namespace(own_plane.api, name)
        kubectl = replace(own_plane.kubectl(), namespace=name)
        made.append(Place(replace(helm, kubeconfig=own_plane.kubeconfig, namespace=name), kubectl))
    yield made
    for place in made:
        own_plane.api.delete(f"/api/v1/namespaces/{place.namespace}")


@pytest.fixture
def place(places: list[Place]) -> Place:
    """Return a namespace of a cluster that does not know our kinds."""
    return places[0]


def test_a_release_comes_changes_and_goes(place: Place) -> None:
    # 1. It comes, and says what to do next.
    said = place.install()
    assert f"kubectl rollout status deployment/docgrid-operator --namespace {place.namespace}" in said
    everything = "deployment,serviceaccount,role,rolebinding"
    assert len(place.names(everything)) == 4
    # 2. A pool is added, and changed.
    place.upgrade(indexingWorkers={"small": POOL})
    made = place.pool("small")
    assert made is not None
    assert made["database"]["secretRef"]["name"] == "docgrid-database"
    place.upgrade(indexingWorkers={"small": {**POOL, "replicas": 3}})
    assert (place.pool("small") or {})["replicas"] == 3
    # 3. Back to the first revision, which had none.
    place.helm("rollback", "docgrid", "1")
    wait_until(lambda: place.pool("small") is None)
    # 4. It goes, its kinds stay, and the next release takes them.
    place.helm("uninstall", "docgrid")
    wait_until(lambda: not place.names(everything))
    assert place.names("crd") == {
        f"customresourcedefinition.apiextensions.k8s.io/{kind[4:]}" for kind in KINDS
    }
    place.install(indexingWorkers={"small": POOL})
    assert place.pool("small") is not None


def test_kinds_that_are_not_kept_go_with_the_release(place: Place) -> None:
    place.install(crds={"keep": False})
    place.helm("uninstall", "docgrid")
    wait_until(lambda: not place.names("crd"))


def test_a_release_keeps_kinds_that_it_kept_at_its_last_upgrade(place: Place) -> None:
    place.install(crds={"keep": False})
    place.upgrade(crds={"keep": True})
    place.helm("uninstall", "docgrid")
    assert len(place.names("crd")) == 2


def test_replicas_that_the_values_leave_out_are_whoever_scales(place: Place) -> None:
    place.install()
    place.upgrade(indexingWorkers={"small": POOL})
    place.kubectl("scale", "indexingworker", "small", "--replicas=4")
    place.upgrade(indexingWorkers={"small": {**POOL, "concurrency": 3}})
    changed = place.pool("small") or {}
    assert (changed["replicas"], changed["concurrency"]) == (4, 3)


def test_replicas_of_the_values_do_not_silently_undo_a_scaling(place: Place) -> None:
    place.install()
    place.upgrade(indexingWorkers={"small": {**POOL, "replicas": 2}})
    place.kubectl("scale", "indexingworker", "small", "--replicas=4")
    values = {**DATABASE, "indexingWorkers": {"small": {**POOL, "replicas": 3}}}
    refusal = place.helm.attempt("upgrade", "docgrid", str(CHART), values=values)
    assert refusal.code == 1
    assert 'conflict with "kubectl"' in refusal.err
    assert ".spec.replicas" in refusal.err
    place.upgrade("--force-conflicts", indexingWorkers=values["indexingWorkers"])
    assert (place.pool("small") or {})["replicas"] == 3


def test_a_second_release_in_a_namespace_is_refused_by_the_name_of_the_first(place: Place) -> None:
    place.install("one")
    for values in ({}, {"crds": {"enabled": False}}):
        refusal = place.attempt("two", **values)
        assert refusal.code == 1
        assert f"namespace {place.namespace}: the DocGrid release one is there already" in refusal.err


def test_a_second_release_in_a_cluster_leaves_the_kinds_to_the_first(places: list[Place]) -> None:
    first, second = places
    first.install()
    refusal = second.attempt()
    assert refusal.code == 1
    assert 'CustomResourceDefinition "indexingjobs.docgrid.dev"' in refusal.err
    assert f'must equal "{second.namespace}": current value is "{first.namespace}"' in refusal.err
    second.install(crds={"enabled": False})
    second.helm("uninstall", "docgrid")
    assert len(first.names("crd")) == 2


def test_kinds_of_a_newer_release_are_not_made_older(place: Place) -> None:
    place.install()
    place.helm("uninstall", "docgrid")
    for version in ("0.1.1-rc.1", "99.0.0"):
        place.kubectl("label", *KINDS, f"app.kubernetes.io/version={version}", "--overwrite")
        refusal = place.attempt()
        assert refusal.code == 1
        told = f"the CustomResourceDefinition indexingworkers.docgrid.dev is of the newer release {version}"
        assert told in refusal.err
        assert "crds.enabled=false" in refusal.err
    place.install(crds={"enabled": False})
    place.helm("uninstall", "docgrid")
    for version in ("0.0.9", "0.1.0", "a-persons-own"):
        place.kubectl("label", *KINDS, f"app.kubernetes.io/version={version}", "--overwrite")
        place.helm(
            "install", "docgrid", str(CHART), "--force-conflicts", values=DATABASE
        )  # with the label of kubectl
        place.helm("uninstall", "docgrid")


def test_a_pool_before_its_kind_is_refused_in_words(place: Place) -> None:
    refusal = place.attempt(indexingWorkers={"small": POOL})
    assert refusal.code == 1
    assert 'no matches for kind "IndexingWorker"' in refusal.err
    assert "ensure CRDs are installed first" in refusal.err
    assert not place.names("deployment,crd")


def test_what_the_apiserver_refuses_of_a_pool_is_said_by_its_path(place: Place) -> None:
    place.install()
    bad = {**POOL, "lease": {"duration": "1m", "renewalInterval": "2m"}}
    values = {**DATABASE, "indexingWorkers": {"small": bad}}
    refusal = place.helm.attempt("upgrade", "docgrid", str(CHART), values=values)
    assert refusal.code == 1
    assert "spec.lease.renewalInterval" in refusal.err
    assert "must be less than duration" in refusal.err


@pytest.mark.parametrize("case", CASES)
def test_the_apiserver_accepts_every_object_and_pods_are_restricted(case: str, place: Place) -> None:
    install_crds(place.kubectl)
    for mode in ("enforce", "warn"):
        label = f"pod-security.kubernetes.io/{mode}=restricted"
        place.kubectl("label", "namespace", place.namespace, label)
    groups: dict[str, list[Object]] = {}
    for each in objects_of(place.helm, case):
        if not each["apiVersion"].startswith("monitoring.coreos.com/"):
            groups.setdefault(each["metadata"].get("namespace", place.namespace), []).append(each)
    for name, objects in groups.items():
        if place.kubectl.attempt("get", "namespace", name).code != 0:
            place.kubectl("create", "namespace", name)
        arguments = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename=-")
        said = replace(place.kubectl, namespace=name)(*arguments, input=yaml.safe_dump_all(objects))
        assert len(said.out.splitlines()) == len(objects)
        assert said.err == ""


def test_the_operator_has_its_rights_where_the_values_say(places: list[Place]) -> None:
    own, other = places
    account = f"system:serviceaccount:{own.namespace}:docgrid-operator"

    def may(place: Place, verb: str = "patch", what: str = "deployments.apps") -> bool:
        return place.kubectl.attempt("auth", "can-i", verb, what, f"--as={account}").out.strip() == "yes"

    own.install()
    wait_until(lambda: (may(own), may(other)) == (True, False))
    own.upgrade(watchNamespaces=[other.namespace])
    wait_until(lambda: (may(own), may(other)) == (True, True))
    own.upgrade(watchAllNamespaces=True)
    wait_until(lambda: (may(own), may(other)) == (True, True))
    assert not may(own, "get", "secrets")
    own.upgrade()
    wait_until(lambda: (may(own), may(other)) == (True, False))
    own.helm("uninstall", "docgrid")
    wait_until(lambda: (may(own), may(other)) == (False, False))


def test_a_namespace_that_is_not_there_is_named_and_the_install_can_go_on(places: list[Place]) -> None:
    own, other = places
    refusal = own.attempt(watchNamespaces=["not-there"])
    assert refusal.code == 1
    assert 'namespaces "not-there" not found' in refusal.err
    own.upgrade("--install", watchNamespaces=[other.namespace])
    assert own.names("deployment") == {"deployment.apps/docgrid-operator"}


def test_helm_takes_over_what_kubectl_has_installed(place: Place) -> None:
    install_crds(place.kubectl)
    assert "invalid ownership metadata" in place.attempt().err
    place.helm("install", "docgrid", str(CHART), "--take-ownership", values=DATABASE)
    assert len(place.names("crd")) == 2


def test_the_install_manifests_are_applied_in_one_go(place: Place) -> None:
    said = place.kubectl("apply", "--server-side", "--filename", str(MANIFESTS / "install.yaml"))
    assert len(said.out.splitlines()) == 6
    assert said.err == ""
    assert place.names("deployment") == {"deployment.apps/docgrid-operator"}
    refusal = place.attempt("helm")
    assert "the DocGrid release docgrid is there already" in refusal.err
