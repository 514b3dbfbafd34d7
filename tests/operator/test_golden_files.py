"""The golden files of the builders on a real apiserver: it takes them, and answers them as they are.

What it answered otherwise would differ from what is wanted for ever, and be written again and again.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from uuid import uuid4

import pytest
import yaml

from docgrid_operator.kinds import DEPLOYMENT, FIELD_MANAGER, Object
from docgrid_operator.plan import derive_difference, stamp
from support.cluster.control_plane import ControlPlane
from support.cluster.fixtures import create_namespace
from support.cluster.kubectl import Kubectl
from support.layers import TESTS

GOLDEN = TESTS / "unit" / "golden"
CASES = sorted(folder.name for folder in GOLDEN.iterdir())


@pytest.fixture(scope="module")
def restricted(control_plane: ControlPlane, crds: None) -> Iterator[Kubectl]:
    """Yield kubectl in a namespace whose pods have to keep to Pod Security restricted."""
    name = f"test-{uuid4().hex[:12]}"
    create_namespace(control_plane.api, name)
    kubectl = replace(control_plane.kubectl(), namespace=name)
    kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    yield kubectl
    control_plane.api.delete(f"/api/v1/namespaces/{name}")


@pytest.mark.parametrize("case", CASES)
def test_the_apiserver_answers_a_golden_file_as_it_is(case: str, restricted: Kubectl) -> None:
    for desired in map(stamp, read(case, "children.yaml", restricted.namespace)):
        assert derive_difference(desired, apply_dry(restricted, desired)) == ""


@pytest.mark.parametrize("case", CASES)
def test_an_indexing_worker_of_a_golden_file_is_one_that_the_apiserver_answers(
    case: str, restricted: Kubectl
) -> None:
    for pool in read(case, "indexing-worker.yaml", restricted.namespace):
        given = {name: pool["metadata"][name] for name in ("name", "namespace")}
        answer = apply_dry(restricted, {**pool, "metadata": given})
        assert answer["spec"] == pool["spec"]


@pytest.mark.parametrize("case", CASES)
def test_pods_of_a_golden_file_are_admitted_where_pod_security_is_restricted(
    case: str, restricted: Kubectl
) -> None:
    for child in read(case, "children.yaml", restricted.namespace):
        if child["kind"] == DEPLOYMENT.name:
            template = child["spec"]["template"]
            pod = {**template["spec"], "serviceAccountName": "default"}
            metadata = {**template["metadata"], "name": "pod", "namespace": restricted.namespace}
            apply_dry(restricted, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})


def read(case: str, file: str, namespace: str) -> list[Object]:
    """Return the objects of a golden file, moved to another namespace."""
    objects = yaml.safe_load_all((GOLDEN / case / file).read_text())
    return [{**obj, "metadata": {**obj["metadata"], "namespace": namespace}} for obj in objects]


def apply_dry(kubectl: Kubectl, obj: Object) -> Object:
    """Return what the apiserver answers to an apply; nothing is kept, so no owner has to be there."""
    command = ("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "--dry-run=server", "-o=json")
    answer: Object = json.loads(kubectl(*command, "-f", "-", input=json.dumps(obj)).out)
    return answer
