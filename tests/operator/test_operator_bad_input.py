"""What people and programs get wrong: condition and Event say what and why, nobody else suffers, and it heals."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import make_url

from docgrid_core.settings import DatabaseSettings
from docgrid_operator.kinds import Object
from support.cluster.pod_status import report_status
from support.cluster.stand_in_node import StandInNode
from support.namespace_objects import build_pool
from support.operator_site import MANIFESTS, OperatorSite
from support.races import wait_until

SECRET_VALUE = "a-value-to-be-seen-nowhere"


def events(site: OperatorSite, reason: str) -> list[str]:
    """Return the messages of the Events of a reason."""
    found = json.loads(site.kubectl("get", "events", "-o", "json").out)["items"]
    return [event["message"] for event in found if event["reason"] == reason]


def words(message: str) -> set[str]:
    """Return the words of a message, and the parts of names with a slash."""
    return set(message.replace("/", " ").split())


def give(site: OperatorSite, secret: str, key: str, value: str) -> None:
    """Wait until the pool asks for the key of a Secret, and add it."""
    wait_until(lambda: {secret, key} <= words(site.condition("Available")["message"]))
    merge(site, "secret", {"stringData": {key: value}}, secret)


def merge(site: OperatorSite, kind: str, change: Object, name: str = "pool") -> None:
    site.kubectl("patch", kind, name, "--type=merge", "-p", json.dumps(change))


def test_a_pod_template_that_kubernetes_refuses_is_told_by_its_fields_without_values(
    site: OperatorSite,
) -> None:
    operator = site.start_ready()
    container = {"name": "worker", "imagePullPolicy": SECRET_VALUE}
    site.apply_pool(podTemplate={"spec": {"containers": [container]}})
    condition = site.wait_for_condition("Progressing", "False", "DeploymentInvalid")
    assert "spec.template.spec.containers[0].imagePullPolicy" in condition["message"]
    wait_until(lambda: events(site, "DeploymentInvalid"))
    shown = operator.output() + str(condition) + str(events(site, "DeploymentInvalid"))
    assert SECRET_VALUE not in shown
    # A neighbour does not suffer.
    site.apply_pool("neighbour", replicas=0)
    wait_until(lambda: site.is_reconciled("neighbour"))
    merge(site, "indexingworker", {"spec": {"podTemplate": None}})
    wait_until(lambda: site.get("deployment") is not None)
    wait_until(lambda: site.condition("Progressing")["reason"] != "DeploymentInvalid")


def test_a_change_that_kubernetes_refuses_leaves_the_workers_as_they_are(site: OperatorSite) -> None:
    site.start_ready()
    site.apply_pool(replicas=1)
    wait_until(site.is_reconciled)
    before = site.get("deployment")
    mount = {"name": "worker", "volumeMounts": [{"name": "nowhere", "mountPath": "/data"}]}
    merge(site, "indexingworker", {"spec": {"podTemplate": {"spec": {"containers": [mount]}}}})
    condition = site.wait_for_condition("Progressing", "False", "DeploymentInvalid")
    assert "volumeMounts[1].name" in condition["message"]
    after = site.get("deployment")
    assert before is not None
    assert after is not None
    assert after["spec"] == before["spec"]


def test_an_object_with_a_known_name_and_another_shape_is_refused_by_the_type_of_its_field(
    site: OperatorSite,
) -> None:
    site.start_ready()
    site.apply_pool(podTemplate={"spec": {"tolerations": 5}})
    condition = site.wait_for_condition("Progressing", "False", "DeploymentInvalid")
    assert condition["message"]
    merge(site, "indexingworker", {"spec": {"podTemplate": None}})
    wait_until(lambda: site.get("deployment") is not None)


@pytest.mark.parametrize(
    ("kind", "foreign"),
    [
        ("serviceaccount", {"apiVersion": "v1", "kind": "ServiceAccount"}),
        (
            "deployment",
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "spec": {
                    "replicas": 0,
                    "selector": {"matchLabels": {"app": "theirs"}},
                    "template": {
                        "metadata": {"labels": {"app": "theirs"}},
                        "spec": {"containers": [{"name": "theirs", "image": "theirs"}]},
                    },
                },
            },
        ),
        (
            "poddisruptionbudget",
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "theirs"}}},
            },
        ),
    ],
)
def test_what_has_the_name_and_is_not_ours_is_left_alone_and_named(
    site: OperatorSite, kind: str, foreign: Object
) -> None:
    operator = site.start_ready()
    site.kubectl.apply({**foreign, "metadata": {"name": "pool"}})
    before = site.get(kind)
    site.apply_pool(replicas=0, disruptionBudget={"minAvailable": 1})
    condition = site.wait_for_condition("Progressing", "False", "NameTaken")
    assert f"a {foreign['kind']} named pool is there" in condition["message"]
    wait_until(lambda: events(site, "NameTaken"))
    operator.wait_for_rounds("resync")
    after = site.get(kind)
    assert before is not None
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert "ownerReferences" not in after["metadata"]
    assert after.get("spec") == before.get("spec")
    # Nor does it go with the pool that it has the name of.
    site.kubectl("delete", "indexingworker", "pool", "--wait=true")
    operator.wait_for_rounds("resync")
    assert site.get(kind) is not None
    site.apply_pool(replicas=0, disruptionBudget={"minAvailable": 1})
    site.wait_for_condition("Progressing", "False", "NameTaken")
    site.kubectl("delete", kind, "pool", "--wait=true")
    wait_until(lambda: "ownerReferences" in ((site.get(kind) or {}).get("metadata") or {}))
    wait_until(lambda: site.condition("Progressing")["reason"] != "NameTaken")


def test_a_secret_that_is_missing_or_lacks_its_key_is_named_until_it_is_there(
    site: OperatorSite, node: StandInNode
) -> None:
    site.start_ready()
    site.kubectl("create", "secret", "generic", "database", "--from-literal=wrong-key=x")
    site.kubectl("create", "secret", "generic", "storage", "--from-literal=access-key=x")
    site.apply_pool(replicas=1)
    site.wait_for_condition("Available", "False", "CreateContainerConfigError")
    give(site, "storage", "secret-key", "x")
    give(site, "database", "url", "postgresql://nowhere/docgrid")
    wait_until(lambda: site.condition("Available")["reason"] != "CreateContainerConfigError")


def test_why_workers_end_again_and_again_is_told_in_their_own_words_within_a_minute(
    site: OperatorSite, node: StandInNode, empty_database_settings: DatabaseSettings
) -> None:
    site.start_ready()
    address = make_url(site.database.url.get_secret_value())
    urls = {
        "password": address.set(password=SECRET_VALUE).render_as_string(hide_password=False),
        "schema": empty_database_settings.url.get_secret_value(),
    }
    site.kubectl(
        "create", "secret", "generic", "storage", "--from-literal=access-key=x", "--from-literal=secret-key=x"
    )
    for name, url in urls.items():
        site.kubectl("create", "secret", "generic", name, f"--from-literal=url={url}")
        site.apply_pool(name, replicas=1, database={"secretRef": {"name": name}})
    ended = "the worker ended (exit code 75, Error) and is started again: DATABASE-SETUP: "
    for name, told in (
        ("password", "the database refuses the password: check user and password"),
        ("schema", "run `docgrid migrate`"),
    ):
        message = site.wait_for_condition("Available", "False", "CrashLoopBackOff", name)["message"]
        assert message.startswith(ended)
        assert told in message
        assert SECRET_VALUE not in message
        assert site.kubectl("get", "indexingworker", name).out.split()[-2] == "CrashLoopBackOff"


def test_a_pod_whose_volume_is_not_there_is_told_without_any_event_and_heals(site: OperatorSite) -> None:
    operator = site.start_ready(operator_resync_interval="10m", operator_status_interval="10m")
    volume = {"name": "settings", "configMap": {"name": "not-there"}}
    site.apply_pool(replicas=1, podTemplate={"spec": {"volumes": [volume]}})
    pod = bind_pod(site)
    # The kubelet has waited for 25 s; until the status has to say so nothing more happens.
    since = (datetime.now(UTC) - timedelta(seconds=25)).strftime("%Y-%m-%dT%H:%M:%SZ")
    waits = {"type": "PodReadyToStartContainers", "status": "False", "lastTransitionTime": since}
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": since}
    report_status(site.control_plane.api, site.namespace, pod, conditions=[placed, waits])
    condition = site.wait_for_condition("Available", "False", "ContainerCreating")
    assert "ConfigMap not-there" in condition["message"]
    assert "kubectl describe pod" in condition["message"]
    assert "ContainerCreating" not in operator.output()
    waits["status"] = "True"
    report_status(site.control_plane.api, site.namespace, pod, conditions=[placed, waits])
    site.wait_for_condition("Available", "False", "WorkersNotReady")


def bind_pod(site: OperatorSite) -> str:
    """Give the pool's pod a node that does not exist, as the scheduler would one that does; return its name."""

    def found() -> str:
        return site.kubectl("get", "pods", "-o", "jsonpath={.items[*].metadata.name}").out

    wait_until(found)
    name = found()
    target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    path = f"/api/v1/namespaces/{site.namespace}/pods/{name}/binding"
    site.control_plane.api.create(path, {"metadata": {"name": name}, "target": target})
    return name


def test_a_quota_that_allows_no_pod_is_told_and_heals(site: OperatorSite) -> None:
    site.start_ready()
    site.kubectl("create", "quota", "none", "--hard=pods=0")
    wait_until(lambda: ((site.get("resourcequota", "none") or {}).get("status") or {}).get("hard"))
    site.apply_pool(replicas=1)
    condition = site.wait_for_condition("Available", "False", "FailedCreate")
    assert "quota" in condition["message"]
    site.kubectl("delete", "quota", "none", "--wait=true")
    wait_until(lambda: site.condition("Available")["reason"] != "FailedCreate")


@pytest.fixture
def other_namespace(site: OperatorSite) -> Iterator[str]:
    """Yield a second namespace that the release may look after."""
    name = f"{site.namespace}-b"
    site.kubectl("create", "namespace", name)
    role = site.kubectl("apply", "-f", str(MANIFESTS / "rbac.yaml"), "--dry-run=client", "-o", "json")
    for obj in json.loads(role.out)["items"]:
        if obj["kind"] == "ServiceAccount":
            continue
        obj["metadata"]["namespace"] = name
        for subject in obj.get("subjects", []):
            subject["namespace"] = site.namespace
        site.kubectl("apply", "-n", name, "-f", "-", input=json.dumps(obj))
    yield name
    site.kubectl("delete", "namespace", name, "--wait=false")


def test_one_name_in_two_watched_namespaces_is_two_pools(site: OperatorSite, other_namespace: str) -> None:
    site.start_ready(operator_watch_namespaces=other_namespace)
    site.apply_pool(replicas=1)
    manifest = json.dumps(build_pool(replicas=3))
    site.kubectl("apply", "-n", other_namespace, "-f", "-", input=manifest)

    def replicas(namespace: str) -> str:
        query = ("get", "deployments", "-n", namespace, "-o", "jsonpath={.items[*].spec.replicas}")
        return site.kubectl(*query).out

    wait_until(lambda: (replicas(site.namespace), replicas(other_namespace)) == ("1", "3"))
    site.kubectl("delete", "indexingworker", "pool", "-n", other_namespace, "--wait=true")
    wait_until(lambda: replicas(other_namespace) == "")
    assert replicas(site.namespace) == "1"
