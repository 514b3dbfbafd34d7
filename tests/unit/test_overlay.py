"""Laying a person's pod template over ours."""

from docgrid_operator.kinds import Object
from docgrid_operator.resources.overlay import overlay_template

OURS: Object = {
    "metadata": {"labels": {"pool": "a"}, "annotations": {"hash": "1"}},
    "spec": {
        "serviceAccountName": "a",
        "containers": [
            {
                "name": "worker",
                "image": "docgrid",
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s"}}},
                ],
                "volumeMounts": [{"name": "tmp", "mountPath": "/data"}],
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    },
}


def container(template: Object) -> Object:
    found: Object = template["spec"]["containers"][0]
    return found


def test_an_empty_template_changes_nothing() -> None:
    assert overlay_template(OURS, {}) == OURS


def test_maps_are_merged_and_our_labels_stay() -> None:
    merged = overlay_template(
        OURS, {"metadata": {"labels": {"pool": "stolen", "team": "x"}, "annotations": {"b": "2"}}}
    )
    assert merged["metadata"] == {
        "labels": {"pool": "a", "team": "x"},
        "annotations": {"hash": "1", "b": "2"},
    }


def test_containers_are_merged_by_name_and_sidecars_are_added() -> None:
    overlay = {
        "spec": {"containers": [{"name": "worker", "image": "mine"}, {"name": "sidecar", "image": "proxy"}]}
    }
    merged = overlay_template(OURS, overlay)
    assert [one["name"] for one in merged["spec"]["containers"]] == ["worker", "sidecar"]
    assert container(merged)["image"] == "mine"
    assert container(merged)["env"] == container(OURS)["env"]


def test_a_variable_is_replaced_whole_whether_it_had_a_value_or_a_source() -> None:
    variables = [
        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}},
        {"name": "S", "value": "plain"},
    ]
    merged = overlay_template(OURS, {"spec": {"containers": [{"name": "worker", "env": variables}]}})
    assert container(merged)["env"] == variables


def test_a_volume_and_its_mount_are_added_beside_ours() -> None:
    overlay = {
        "spec": {
            "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
            "containers": [{"name": "worker", "volumeMounts": [{"name": "ca", "mountPath": "/ca"}]}],
        }
    }
    merged = overlay_template(OURS, overlay)
    assert [volume["name"] for volume in merged["spec"]["volumes"]] == ["tmp", "ca"]
    assert [mount["mountPath"] for mount in container(merged)["volumeMounts"]] == ["/data", "/ca"]


def test_a_volume_of_ours_is_replaced_whole_because_it_has_one_source() -> None:
    disk = {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    assert overlay_template(OURS, {"spec": {"volumes": [disk]}})["spec"]["volumes"] == [disk]


def test_a_null_takes_a_field_away_and_other_lists_are_replaced() -> None:
    overlay = {"spec": {"serviceAccountName": None, "tolerations": [{"operator": "Exists"}]}}
    merged = overlay_template({**OURS, "spec": {**OURS["spec"], "tolerations": [{"key": "k"}]}}, overlay)
    assert "serviceAccountName" not in merged["spec"]
    assert merged["spec"]["tolerations"] == [{"operator": "Exists"}]
