"""What counts as a difference between an object as it should be and as it is."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docgrid_operator.kinds import APPLIED_ANNOTATION, Object
from docgrid_operator.plan import derive_difference, difference, digest, stamp, surplus

DESIRED: Object = {
    "metadata": {"name": "a", "labels": {"x": "1"}},
    "spec": {
        "replicas": 2,
        "containers": [
            {
                "name": "worker",
                "command": ["docgrid-worker"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "resources": {"requests": {"cpu": "0.5", "memory": "512Mi"}},
            }
        ],
    },
}


def live(**changes: Any) -> Object:
    return {**deepcopy(stamp(DESIRED)), **changes}


def container(obj: Object) -> Object:
    found: Object = obj["spec"]["containers"][0]
    return found


def test_an_object_that_is_live_as_it_should_be_needs_nothing() -> None:
    assert derive_difference(stamp(DESIRED), live()) == ""


def test_what_the_apiserver_and_others_add_is_not_ours_to_compare() -> None:
    obj = live(status={"replicas": 2})
    obj["metadata"] |= {"resourceVersion": "7", "labels": {"x": "1", "theirs": "2"}}
    container(obj)["imagePullPolicy"] = "IfNotPresent"
    container(obj)["env"].insert(0, {"name": "INJECTED", "value": "by a webhook"})
    obj["spec"]["containers"].append({"name": "sidecar"})
    assert derive_difference(stamp(DESIRED), obj) == ""


def test_quantities_are_compared_by_value() -> None:
    obj = live()
    container(obj)["resources"]["requests"] = {"cpu": "500m", "memory": "0.5Gi"}
    assert derive_difference(stamp(DESIRED), obj) == ""
    container(obj)["resources"]["requests"]["cpu"] = "501m"
    assert "cpu" in derive_difference(stamp(DESIRED), obj)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replicas"), 3),
        (("spec", "replicas"), None),
        (("metadata", "labels"), {}),
        (("metadata", "labels"), None),
        (("spec", "containers"), []),
    ],
)
def test_a_field_of_ours_that_was_edited_is_a_difference(path: tuple[str, str], value: Any) -> None:
    obj = live()
    obj[path[0]][path[1]] = value
    assert derive_difference(stamp(DESIRED), obj)


def test_a_variable_that_was_edited_is_named() -> None:
    obj = live()
    container(obj)["env"][1]["value"] = "edited"
    assert derive_difference(stamp(DESIRED), obj) == "spec.containers[worker].env[B].value"


def test_a_field_that_is_no_longer_wanted_is_a_difference_though_nothing_wanted_is_missing() -> None:
    obj = live()
    smaller = deepcopy(DESIRED)
    del container(smaller)["resources"]
    assert difference(smaller, obj) == ""
    assert derive_difference(stamp(smaller), obj) == "changed"


def test_an_object_that_is_not_there_is_created() -> None:
    assert derive_difference(stamp(DESIRED), None) == "created"


def test_the_stamp_is_that_of_the_content() -> None:
    assert stamp(DESIRED)["metadata"]["annotations"] == {APPLIED_ANNOTATION: digest(DESIRED)}
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1}) != digest({"a": 1, "b": [3]})


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "1", "1Mi"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "a", "b"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(JSON)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert difference(value, deepcopy(value), "value") == ""


@given(JSON, st.dictionaries(st.sampled_from(["c", "d"]), JSON, max_size=2))
def test_what_somebody_adds_to_an_object_is_no_difference(value: Any, added: Object) -> None:
    desired = {"a": value}
    assert difference(desired, {**added, **desired}) == ""


def test_what_somebody_adds_to_a_group_of_our_own_is_removed_and_nothing_else() -> None:
    desired = {"spec": {"a": 1}, "status": {"b": 2}, "kept": "as it is"}
    live = {"spec": {"a": 5, "x": 1}, "status": {"b": 2}, "metadata": {"y": 1}, "kept": "other"}
    assert surplus(desired, live) == {"spec": {"x": None}}
    assert surplus(desired, {}) == {}
    assert surplus(desired, desired) == {}
