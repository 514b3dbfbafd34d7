"""What a pool consists of: golden files in YAML, and what holds for every pool.

A golden file is what a person reviews when a builder changes. `DOCGRID_WRITE_GOLDEN=1` writes them anew; a case
is a folder with an `indexing-worker.yaml`, as the apiserver answers it.
"""

import json
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from docgrid_operator.api.v1alpha1 import IndexingWorker
from docgrid_operator.api.v1alpha1.indexing_worker import MAX_NAME
from docgrid_operator.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    POOL_LABEL,
    SERVICE_ACCOUNT,
    Kind,
    Object,
)
from support.pool_specs import specs
from support.pools import REPLICAS, UID, build_manifest, build_pool, children, differing, present, template

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(folder.name for folder in GOLDEN.iterdir())


@pytest.mark.parametrize("case", CASES)
def test_the_children_of_a_pool_are_those_of_its_golden_file(case: str) -> None:
    written = yaml.safe_dump_all(
        present(children(golden_pool(case))), sort_keys=False, width=118, allow_unicode=True
    )
    golden = GOLDEN / case / "children.yaml"
    if os.environ.get("DOCGRID_WRITE_GOLDEN") == "1":
        golden.write_text(written)
    assert written == golden.read_text(), "if that is as it should be: DOCGRID_WRITE_GOLDEN=1 writes it"


def test_a_pool_whose_name_is_as_long_as_allowed_is_among_the_golden_files() -> None:
    assert len(golden_pool("longest-name").name) == MAX_NAME


@given(specs())
def test_the_same_pool_always_has_the_same_children(spec: Object) -> None:
    reordered = {name: spec[name] for name in reversed(spec)}
    one, other = (IndexingWorker.parse(build_manifest(**deepcopy(each))) for each in (spec, reordered))
    assert json.dumps(present(children(one))) == json.dumps(present(children(other)))


@given(specs(), st.integers(0, 99), st.booleans(), st.integers(2, 99))
def test_neither_scaling_nor_suspending_nor_time_changes_the_pods(
    spec: Object, replicas: int, suspend: bool, generation: int
) -> None:
    changed = {**spec, "replicas": replicas, "suspend": suspend}
    before, after = children(build_pool(**spec)), children(build_pool(generation=generation, **changed))
    assert differing(before, after) <= {REPLICAS}
    assert after[DEPLOYMENT]["spec"]["replicas"] == (0 if suspend else replicas)


@given(specs(), specs())
def test_names_labels_and_selectors_depend_on_nothing_but_the_pools_name(one: Object, other: Object) -> None:
    theirs = [identities(children(build_pool(**spec))) for spec in (one, other)]
    shared = theirs[0].keys() & theirs[1].keys()
    assert {kind: theirs[0][kind] for kind in shared} == {kind: theirs[1][kind] for kind in shared}


@pytest.mark.parametrize("case", CASES)
def test_every_child_goes_with_its_pool_and_holds_nothing_back(case: str) -> None:
    pool = golden_pool(case)
    owner = {"apiVersion": "docgrid.dev/v1alpha1", "kind": "IndexingWorker", "name": pool.name, "uid": UID}
    for child in present(children(pool)):
        assert child["metadata"]["ownerReferences"] == [{**owner, "controller": True}]
        assert "finalizers" not in child["metadata"]


@given(specs())
def test_pods_keep_to_pod_security_restricted(spec: Object) -> None:
    pod = template(build_pool(**spec))["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.keys()
    assert all(volume.keys() == {"name", "emptyDir"} for volume in pod["volumes"])
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert all("hostPort" not in port for port in container["ports"])


@pytest.mark.parametrize("case", CASES)
def test_no_pod_has_a_token_for_the_apiserver(case: str) -> None:
    pool = golden_pool(case)
    assert children(pool)[SERVICE_ACCOUNT]["automountServiceAccountToken"] is False
    assert template(pool)["spec"]["automountServiceAccountToken"] is False


@given(specs())
def test_the_kubelet_waits_longer_for_the_end_of_a_worker_than_the_worker_for_its_jobs(spec: Object) -> None:
    pool = build_pool(**spec)
    grace = template(pool)["spec"]["terminationGracePeriodSeconds"]
    assert pool.spec.shutdown_grace_period.total_seconds() + 15 <= grace
    assert grace < pool.spec.shutdown_grace_period.total_seconds() + 16


def test_a_pod_template_can_not_take_pods_away_from_their_pool() -> None:
    stolen = {"metadata": {"labels": {POOL_LABEL: "another"}}}
    pool = build_pool(podTemplate=stolen)
    assert template(pool)["metadata"]["labels"][POOL_LABEL] == "pool"


@pytest.mark.parametrize("emptied", [{}, {"metadata": None}, {"metadata": {"labels": None}}])
def test_a_pod_template_that_empties_the_metadata_leaves_our_labels(emptied: Object) -> None:
    labels = template(build_pool())["metadata"]["labels"]
    assert template(build_pool(podTemplate=emptied))["metadata"]["labels"] == labels


def test_a_disruption_budget_that_asks_for_nothing_is_none() -> None:
    assert children(build_pool())[DISRUPTION_BUDGET] is None


def golden_pool(case: str) -> IndexingWorker:
    return IndexingWorker.parse(yaml.safe_load((GOLDEN / case / "indexing-worker.yaml").read_text()))


def identities(all_children: dict[Kind, Any]) -> dict[str, Any]:
    """Return name, labels and selector of every child and of the pods."""
    pods = all_children[DEPLOYMENT]["spec"]["template"]["metadata"]["labels"]
    return {"pods": pods} | {
        kind.name: (child["metadata"], child.get("spec", {}).get("selector"))
        for kind, child in all_children.items()
        if child is not None
    }
