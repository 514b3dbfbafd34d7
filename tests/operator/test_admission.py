"""What the apiserver refuses and what it accepts: every refusal names the field and the rule."""

import copy
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import pytest
import yaml

from docgrid_operator.api.v1alpha1 import IndexingWorker, InvalidObject
from support.bad_manifests import BAD, JOB, LEFT_TO_THE_APISERVER, POOL, SAMPLES, Bad
from support.cluster.control_plane import ControlPlane
from support.cluster.fixtures import create_namespace
from support.cluster.kubectl import Kubectl, Output


@pytest.fixture(scope="module")
def refusals(control_plane: ControlPlane, crds: None) -> Mapping[str, Output]:
    """Apply every bad manifest as a person does, a few at a time."""
    namespace = f"test-{uuid4().hex[:12]}"
    create_namespace(control_plane.api, namespace)
    kubectl = replace(control_plane.kubectl(), namespace=namespace)

    def apply(bad: Bad) -> Output:
        return kubectl.attempt("apply", "-f", "-", input=yaml.safe_dump(bad.manifest))

    assert len(set(map(str, BAD))) == len(BAD), "two rows have one name"
    with ThreadPoolExecutor(4) as threads:
        return dict(zip(map(str, BAD), threads.map(apply, BAD), strict=True))


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_refusal_names_the_field_and_the_rule(bad: Bad, refusals: Mapping[str, Output]) -> None:
    refusal = refusals[str(bad)]
    assert refusal.code == 1
    assert any(bad.named in line and bad.rule in line for line in refusal.err.splitlines()), refusal.err
    assert "evaluating rule" not in refusal.err, "a rule could not be evaluated: the person sees its insides"


@pytest.mark.parametrize(
    "bad",
    [
        bad
        for bad in BAD
        if bad.good is POOL and not any(part in f"{bad.named} {bad.rule}" for part in LEFT_TO_THE_APISERVER)
    ],
    ids=str,
)
def test_the_operator_refuses_what_the_apiserver_refuses(bad: Bad) -> None:
    with pytest.raises(InvalidObject, match=r"^(spec|metadata)"):
        IndexingWorker.parse(bad.manifest)


def test_the_samples_are_accepted(kubectl: Kubectl, crds: None) -> None:
    kubectl("apply", "-f", str(SAMPLES))
    assert kubectl("get", "iw", "-o", "name").out.split() == [
        f"indexingworker.docgrid.dev/{name}" for name in ("autoscaled", "builtin", "hosted", "small")
    ]


def test_the_apiserver_fills_in_the_workers_own_defaults(kubectl: Kubectl, crds: None) -> None:
    kubectl.apply(POOL)
    stored = yaml.safe_load(kubectl("get", "iw", "small", "-o", "yaml").out)
    assert IndexingWorker.parse(stored).spec == IndexingWorker.parse(POOL).spec
    assert stored["spec"]["lease"] == {"duration": "5m", "renewalInterval": "1m"}
    assert stored["spec"]["storage"]["secretRef"]["accessKeyKey"] == "access-key"


def test_odd_but_right_values_are_accepted(kubectl: Kubectl, crds: None) -> None:
    pool = copy.deepcopy(POOL)
    pool["metadata"]["name"] = "a" * 50
    pool["spec"] |= {
        "replicas": 0,
        "shutdownGracePeriod": "0s",
        "polling": {"interval": "10s", "idleMaxInterval": "10s"},
        "lease": {"duration": "1h30m", "renewalInterval": "1.5s"},
        "chunking": {"size": 1, "overlap": 0},
        "disruptionBudget": {"minAvailable": "50%"},
        "resources": {
            "requests": {"cpu": 1, "memory": "0.5Gi"},
            "limits": {"cpu": "1000m", "memory": "1024Mi", "nvidia.com/gpu": 1},
        },
        "podTemplate": {
            "metadata": {"labels": {"team": "search"}, "annotations": {"example.com/note": "x" * 4096}},
            "spec": {
                "nodeSelector": {"disk": "ssd"},
                "containers": [{"name": "worker", "env": [{"name": "HTTPS_PROXY", "value": "http://proxy"}]}],
            },
        },
    }
    kubectl.apply(pool)
    stored = yaml.safe_load(kubectl("get", "iw", "-o", "yaml").out)["items"][0]
    assert stored["spec"]["podTemplate"] == pool["spec"]["podTemplate"]
    assert stored["spec"]["resources"] == pool["spec"]["resources"]


def test_kubectl_scale_writes_the_replicas(kubectl: Kubectl, crds: None, namespace: str) -> None:
    kubectl.apply(POOL)
    status = '{"status": {"replicas": 2, "selector": "docgrid.dev/indexing-worker=small"}}'
    kubectl("patch", "iw", "small", "--subresource=status", "--type=merge", "--patch", status)
    kubectl("scale", "iw/small", "--replicas=5", "--current-replicas=2")
    path = f"/apis/docgrid.dev/v1alpha1/namespaces/{namespace}/indexingworkers/small/scale"
    scale = yaml.safe_load(kubectl("get", "--raw", path).out)
    assert scale["spec"] == {"replicas": 5}
    assert scale["status"] == {"replicas": 2, "selector": "docgrid.dev/indexing-worker=small"}
    refused = kubectl.attempt("patch", "iw", "small", "--type=merge", "--patch", '{"spec": {"replicas": -1}}')
    assert "spec.replicas" in refused.err


def test_the_tables_show_what_a_person_looks_for(kubectl: Kubectl, crds: None) -> None:
    kubectl.apply(POOL)
    queue = '{"ready": 7, "processing": 2, "failed": 1, "oldestReadyAt": "2020-01-01T00:00:00Z"}'
    available = (
        '{"type": "Available", "status": "True", "reason": "WorkersReady", "message": "every worker is ready",'
        ' "observedGeneration": 1, "lastTransitionTime": "2020-01-01T00:00:00Z"}'
    )
    status = (
        f'{{"status": {{"readyReplicas": 2, "workers": {{"active": 1, "dead": 0}}, "queue": {queue},'
        f' "conditions": [{available}]}}}}'
    )
    kubectl("patch", "iw", "small", "--subresource=status", "--type=merge", "--patch", status)
    head, row = kubectl("get", "iw").out.splitlines()
    assert head.split() == [
        "NAME",
        "READY",
        "ACTIVE",
        "DEAD",
        "PENDING",
        "PROCESSING",
        "FAILED",
        "OLDEST",
        "REASON",
        "AGE",
    ]
    assert row.split()[:7] == ["small", "2", "1", "0", "7", "2", "1"]
    assert row.split()[8] == "WorkersReady"
    wide = kubectl("get", "iw", "-o", "wide").out.splitlines()[0].split()
    assert wide[10:] == ["REPLICAS", "MODEL", "DELAYED", "SUSPENDED", "AVAILABLE"]


def test_views_are_written_whole_and_found_by_their_state(kubectl: Kubectl, crds: None) -> None:
    second = copy.deepcopy(JOB) | {"metadata": {"name": "job-7"}}
    second["spec"]["jobId"] = 7
    second["status"] |= {
        "state": "FAILED",
        "errorCode": "DOCUMENT-PARSING-002",
        "attempt": 1,
        "worker": "w-1",
    }
    for view in (JOB, second):
        kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump(view))
    failed = kubectl("get", "ij", "--field-selector=status.state=FAILED", "--no-headers").out.split()
    assert failed[:7] == ["job-7", "Handbook", "3", "FAILED", "1", "w-1", "DOCUMENT-PARSING-002"]
    kubectl("wait", "--for=jsonpath={.status.state}=PENDING", "indexingjob/job-42", "--timeout=60s")
    head = kubectl("get", "indexingjobs", "-o", "wide").out.splitlines()[0]
    assert head.split()[8:] == ["MODEL", "RETRIES", "NEXT", "RETRY", "MESSAGE"]


def test_both_kinds_are_in_one_category(kubectl: Kubectl, crds: None) -> None:
    kubectl.apply(POOL, JOB)
    names = kubectl("get", "docgrid", "-o", "name").out.split()
    assert names == ["indexingjob.docgrid.dev/job-42", "indexingworker.docgrid.dev/small"]


def test_every_field_is_explained(kubectl: Kubectl, crds: None) -> None:
    said = kubectl("explain", "iw.spec.lease.renewalInterval").out
    assert "How often held leases are renewed; less than duration." in said
    whole = kubectl("explain", "iw", "--recursive").out
    assert all(field in whole for field in ("idleMaxInterval", "oldestReadyAt", "observedGeneration"))
    assert "Where it stands in the queue." in kubectl("explain", "ij.status.state").out
