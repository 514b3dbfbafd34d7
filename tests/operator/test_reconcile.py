"""An IndexingWorker becomes its children, and stays them: created, changed, healed, scaled, suspended, deleted."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from docgrid_operator.kinds import Object
from support.cluster.control_plane import ControlPlane
from support.database import Template
from support.operator_site import OperatorProcess, OperatorSite, running_site
from support.races import wait_until

CHILDREN = ("serviceaccount", "deployment", "poddisruptionbudget")


@pytest.fixture(scope="module")
def release(
    control_plane: ControlPlane,
    crds: None,
    postgres_url: str,
    migrated_template: Template,
    tmp_path_factory: Any,
) -> Iterator[tuple[OperatorSite, OperatorProcess]]:
    """Yield one release with a running operator for all tests: each begins and ends without a pool."""
    with running_site(
        control_plane, postgres_url, migrated_template, tmp_path_factory.mktemp("release")
    ) as site:
        yield site, site.start_ready()


@pytest.fixture
def site(release: tuple[OperatorSite, OperatorProcess]) -> Iterator[OperatorSite]:
    yield release[0]
    release[0].kubectl("delete", "indexingworkers,horizontalpodautoscalers", "--all", "--wait=true")
    wait_until(lambda: release[0].kubectl("get", "deployments,poddisruptionbudgets", "-o", "name").out == "")


@pytest.fixture
def operator(release: tuple[OperatorSite, OperatorProcess]) -> OperatorProcess:
    return release[1]


def wait_for(site: OperatorSite, kind: str, name: str = "pool") -> Object:
    wait_until(lambda: site.get(kind, name) is not None)
    found = site.get(kind, name)
    assert found is not None
    return found


def wait_for_replicas(site: OperatorSite, replicas: int) -> None:
    wait_until(lambda: wait_for(site, "deployment")["spec"]["replicas"] == replicas)


def wait_for_status(site: OperatorSite, **fields: Any) -> None:
    wait_until(lambda: fields.items() <= (wait_for(site, "indexingworker").get("status") or {}).items())


def settle(site: OperatorSite, operator: OperatorProcess) -> int:
    """Wait until the operator has done what the newest spec asks for, and return a mark of the audit log."""
    pool = wait_for(site, "indexingworker")
    wait_for_status(site, observedGeneration=pool["metadata"]["generation"])
    wait_until(lambda: site.condition("ModelReady").get("status") == "True")
    return operator.wait_until_quiet(site)


def patch(site: OperatorSite, kind: str, change: Object, name: str = "pool") -> None:
    site.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(change))


def template_of(deployment: Object) -> Object:
    template: Object = deployment["spec"]["template"]
    return template


def test_a_pool_gets_its_children_owned_by_it_and_a_status(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    site.apply_pool(replicas=2, disruptionBudget={"maxUnavailable": 1})
    pool = wait_for(site, "indexingworker")
    for kind in CHILDREN:
        (owner,) = wait_for(site, kind)["metadata"]["ownerReferences"]
        assert owner["uid"] == pool["metadata"]["uid"]
        assert "blockOwnerDeletion" not in owner or owner["blockOwnerDeletion"] is False
    wait_for_status(site, observedGeneration=1, selector="docgrid.dev/indexing-worker=pool")
    status = wait_for(site, "indexingworker")["status"]
    assert [condition["type"] for condition in status["conditions"]] == [
        "Available",
        "Progressing",
        "DatabaseReachable",
        "ModelReady",
        "Suspended",
    ]
    assert "finalizers" not in pool["metadata"]


def test_a_deleted_child_comes_back_and_an_edited_one_is_put_back(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    site.apply_pool(disruptionBudget={"minAvailable": 1})
    before = {kind: wait_for(site, kind)["metadata"]["uid"] for kind in CHILDREN}
    for kind in CHILDREN:
        site.kubectl("delete", kind, "pool", "--wait=false")
    wait_until(lambda: all((site.get(kind) or {"metadata": {"uid": uid}})["metadata"]["uid"] != uid
                           for kind, uid in before.items()))  # fmt: skip
    edited = {"spec": {"template": {"spec": {"containers": [{"name": "worker", "image": "evil"}]}}}}
    site.kubectl("patch", "deployment", "pool", "--type=strategic", "-p", json.dumps(edited))
    site.kubectl("scale", "deployment", "pool", "--replicas=7")
    site.kubectl("label", "deployment", "pool", "--overwrite", "docgrid.dev/indexing-worker=other")

    def is_back() -> bool:
        deployment = wait_for(site, "deployment")
        return bool(
            template_of(deployment)["spec"]["containers"][0]["image"] == "docgrid:test"
            and deployment["spec"]["replicas"] == 1
            and deployment["metadata"]["labels"]["docgrid.dev/indexing-worker"] == "pool"
        )

    wait_until(is_back)


def test_fields_of_others_are_left_alone(site: OperatorSite, operator: OperatorProcess) -> None:
    site.apply_pool()
    wait_for(site, "deployment")
    mark = settle(site, operator)
    patch(site, "deployment", {"metadata": {"annotations": {"other/tool": "x"}, "labels": {"team": "y"}}})
    patch(site, "deployment", {"spec": {"minReadySeconds": 3}})
    edited = wait_for(site, "deployment")["metadata"]["generation"]
    wait_until(lambda: wait_for(site, "deployment")["status"]["observedGeneration"] >= edited)
    site.apply_pool(concurrency=3)
    wait_until(
        lambda: "3" in json.dumps(template_of(wait_for(site, "deployment"))["spec"]["containers"][0]["env"])
    )
    deployment = wait_for(site, "deployment")
    assert deployment["metadata"]["annotations"]["other/tool"] == "x"
    assert deployment["metadata"]["labels"]["team"] == "y"
    assert deployment["spec"]["minReadySeconds"] == 3

    def written() -> int:
        return len([write for write in site.writes(since=mark) if write.resource == "deployments"])

    wait_until(lambda: written() > 0)  # it can be seen a moment before it is logged and answered
    assert written() == 1


def test_nothing_is_written_when_nothing_changed(site: OperatorSite, operator: OperatorProcess) -> None:
    for number in range(3):
        site.apply_pool(f"pool-{number}", replicas=0, disruptionBudget={"minAvailable": "50%"})
    for number in range(3):
        wait_until(lambda name=f"pool-{number}": site.condition("ModelReady", name).get("status") == "True")  # type: ignore[misc]
    mark = operator.wait_until_quiet(site)
    lines = len(operator.lines())
    site.kubectl(
        "annotate", "indexingworker", "pool-0", "somebody=touched"
    )  # reconciled, and found as it should be
    operator.wait_for_rounds("status", "views", "liveness", "events", "resync")
    assert site.writes(since=mark) == []
    assert len(operator.lines()) == lines


def test_a_change_of_settings_rolls_the_pods_once_and_a_change_of_replicas_does_not(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    site.apply_pool(replicas=1)
    first = template_of(wait_for(site, "deployment"))
    site.kubectl("scale", "indexingworker", "pool", "--replicas=3")
    wait_for_replicas(site, 3)
    assert template_of(wait_for(site, "deployment")) == first
    site.apply_pool(replicas=3, heartbeat={"interval": "5s"})
    wait_until(lambda: template_of(wait_for(site, "deployment")) != first)
    second = template_of(wait_for(site, "deployment"))
    hash_of = "docgrid.dev/config-hash"
    assert second["metadata"]["annotations"][hash_of] != first["metadata"]["annotations"][hash_of]
    assert wait_for(site, "deployment")["metadata"]["annotations"]["deployment.kubernetes.io/revision"] in {
        "1",
        "2",
    }


def test_an_annotation_restarts_the_pods(site: OperatorSite, operator: OperatorProcess) -> None:
    site.apply_pool()
    wait_for(site, "deployment")
    site.kubectl("annotate", "indexingworker", "pool", "docgrid.dev/restart=now")
    wait_until(
        lambda: (
            template_of(wait_for(site, "deployment"))["metadata"]["annotations"].get("docgrid.dev/restart")
            == "now"
        )
    )


def test_suspend_takes_all_workers_away_and_gives_them_back(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    site.apply_pool(replicas=2)
    wait_for_replicas(site, 2)
    patch(site, "indexingworker", {"spec": {"suspend": True}})
    wait_for_replicas(site, 0)
    site.wait_for_condition("Suspended", "True", "Suspended")
    assert site.condition("Available")["reason"] == "Suspended"
    assert wait_for(site, "indexingworker")["spec"]["replicas"] == 2
    patch(site, "indexingworker", {"spec": {"suspend": False}})
    wait_for_replicas(site, 2)
    site.wait_for_condition("Suspended", "False", "NotSuspended")
    query = ("get", "events", "-o", "jsonpath={range .items[*]}{.reason}{'\\n'}{end}")
    wait_until(lambda: {"ScaledDown", "ScaledUp"} <= set(site.kubectl(*query).out.split()))


def test_an_hpa_scales_the_pool_through_its_scale_subresource(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    site.apply_pool(replicas=1)
    wait_for_status(site, replicas=1, selector="docgrid.dev/indexing-worker=pool")
    # No metrics are served here; the lower bound needs none.
    site.kubectl.apply(
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": {"name": "pool"},
            "spec": {
                "scaleTargetRef": {
                    "apiVersion": "docgrid.dev/v1alpha1",
                    "kind": "IndexingWorker",
                    "name": "pool",
                },
                "minReplicas": 3,
                "maxReplicas": 5,
            },
        }
    )
    wait_for_replicas(site, 3)
    assert wait_for(site, "indexingworker")["spec"]["replicas"] == 3


def test_a_budget_that_is_no_longer_wanted_goes(site: OperatorSite, operator: OperatorProcess) -> None:
    site.apply_pool(disruptionBudget={"minAvailable": 1})
    assert wait_for(site, "poddisruptionbudget")["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    patch(site, "indexingworker", {"spec": {"disruptionBudget": None}})
    wait_until(lambda: site.get("poddisruptionbudget") is None)


def test_a_pool_that_is_deleted_takes_its_children_with_it(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    site.apply_pool(disruptionBudget={"minAvailable": 1})
    for kind in CHILDREN:
        wait_for(site, kind)
    site.kubectl("delete", "indexingworker", "pool", "--wait=true")
    wait_until(lambda: all(site.get(kind) is None for kind in CHILDREN))


def test_a_pool_of_the_same_name_made_at_once_gets_children_of_its_own(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    site.apply_pool()
    wait_for(site, "deployment")
    site.kubectl("delete", "indexingworker", "pool", "--wait=true")
    site.apply_pool()
    uid = wait_for(site, "indexingworker")["metadata"]["uid"]

    def is_owned() -> bool:
        deployment = site.get("deployment")
        return deployment is not None and deployment["metadata"]["ownerReferences"][0]["uid"] == uid

    wait_until(is_owned)


def test_a_status_that_somebody_overwrites_is_put_back(site: OperatorSite, operator: OperatorProcess) -> None:
    site.apply_pool(replicas=0)
    settle(site, operator)
    nonsense = {
        "status": {
            "readyReplicas": 99,
            "selector": "x=y",
            "workers": {"dead": 7},
            "queue": {"oldestReadyAt": "2020-01-01T00:00:00Z"},
            "conditions": [],
        }
    }
    site.kubectl(
        "patch", "indexingworker", "pool", "--subresource=status", "--type=merge", "-p", json.dumps(nonsense)
    )
    wait_for_status(site, readyReplicas=0, selector="docgrid.dev/indexing-worker=pool")
    wait_until(lambda: site.condition("Suspended").get("status") == "False")
    wait_until(lambda: "oldestReadyAt" not in wait_for(site, "indexingworker")["status"]["queue"])
    mark = settle(site, operator)
    operator.wait_for_rounds("status", "resync")
    assert site.writes(since=mark) == []


def test_one_name_in_two_namespaces_is_two_pools(site: OperatorSite, operator: OperatorProcess) -> None:
    site.apply_pool(replicas=1)
    wait_for_replicas(site, 1)
    other = f"{site.namespace}-other"
    site.kubectl("create", "namespace", other)
    try:
        site.kubectl("apply", "-n", other, "-f", "-", input=json.dumps(site.apply_pool(replicas=1)))
        site.wait_for_condition("Suspended", "False", "NotSuspended")
        # Not watched by this release: left alone.
        assert site.kubectl("get", "deployments", "-n", other, "-o", "name").out == ""
    finally:
        site.kubectl("delete", "namespace", other, "--wait=false")
