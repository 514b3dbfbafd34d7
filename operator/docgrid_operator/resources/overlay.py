"""Laying a person's `podTemplate` over ours: maps by key, lists of named things by name.

As `kubectl patch` does it (strategic merge), for the lists that a pod template has. What we rely on stays: the
labels by which pods are found.
"""

from collections.abc import Mapping
from typing import Any

from docgrid_operator.kinds import Object

_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
}

_ONE_OF = frozenset({"env", "volumes"})
"""Lists whose items have one source of several, never two: such an item is replaced whole, not mixed."""


def overlay_template(template: Object, overlay: Mapping[str, Any]) -> Object:
    """Return our pod template with a person's laid over it; our labels win."""
    merged: Object = overlay_value(template, overlay)
    metadata = merged.get("metadata") or {}
    labels = {**(metadata.get("labels") or {}), **template["metadata"]["labels"]}
    return {**merged, "metadata": {**metadata, "labels": labels}}


def overlay_value(base: Any, over: Any, field: str = "") -> Any:
    """Return `base` with `over` laid over it; a null in `over` removes the field."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        changed = {name: overlay_value(base.get(name), value, name) for name, value in over.items()}
        return {name: value for name, value in {**base, **changed}.items() if value is not None}
    key = _MERGE_KEYS.get(field)
    if key and isinstance(base, list) and isinstance(over, list):
        return _overlay_list(base, over, key, replace=field in _ONE_OF)
    return over


def _overlay_list(base: list[Any], over: list[Any], key: str, *, replace: bool) -> list[Any]:
    merged = {_item_key(item, key): item for item in base}
    for item in over:
        name = _item_key(item, key)
        merged[name] = item if replace or name not in merged else overlay_value(merged[name], item)
    return list(merged.values())


def _item_key(item: Any, key: str) -> str:
    return str(item.get(key)) if isinstance(item, Mapping) else repr(item)
