"""What differs between an object as it should be and as it is. Pure.

Server-side apply would answer "nothing changed" too, but asking costs a write request: a steady cluster is to
see none.
"""

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

from docgrid_operator.kinds import APPLIED_ANNOTATION, Object

_LIST_KEYS = ("uid", "name", "mountPath", "containerPort", "type")
"""By which field the apiserver tells the items of a list apart, the first that all of them have."""
_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal("1e3"), "M": Decimal("1e6"), "G": Decimal("1e9"), "T": Decimal("1e12"), "P": Decimal("1e15"),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip


def digest(value: Any) -> str:
    """Return a short hash of any JSON value, the same for the same content."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stamp(desired: Object) -> Object:
    """Return the object with the hash of its content as an annotation: what we applied last."""
    metadata = desired["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED_ANNOTATION: digest(desired)}
    return {**desired, "metadata": {**metadata, "annotations": annotations}}


def derive_difference(desired: Object, live: Object | None) -> str:
    """Say why a stamped object must be applied; empty if it is live as it should be.

    A field that is in `live` alone belongs to somebody else, unless we applied it before: then the stamp differs.
    """
    if live is None:
        return "created"
    applied = (live["metadata"].get("annotations") or {}).get(APPLIED_ANNOTATION)
    if applied != desired["metadata"]["annotations"][APPLIED_ANNOTATION]:
        return "changed"
    return difference(desired, live)


def difference(desired: Any, live: Any, path: str = "") -> str:
    """Return the path of the first field in which `live` is not as desired; empty if there is none."""
    if isinstance(desired, Mapping):
        if not isinstance(live, Mapping):
            return path if desired or live is not None else ""
        for name, value in desired.items():
            if found := difference(value, live.get(name), f"{path}.{name}" if path else name):
                return found
        return ""
    if isinstance(desired, list):
        return _difference_of_lists(desired, live, path)
    return "" if desired == live or _same_quantity(desired, live) else path


def surplus(desired: Object, live: Object) -> Object:
    """Return a merge patch that removes from the groups (`spec`, `queue`, …) of `live` what `desired` lacks there.

    It is for objects that are ours alone: server-side apply leaves fields of other managers where they are.
    """
    groups = [name for name, value in desired.items() if isinstance(value, Mapping)]
    extra = {name: dict.fromkeys((live.get(name) or {}).keys() - desired[name].keys()) for name in groups}
    return {name: fields for name, fields in extra.items() if fields}


def _difference_of_lists(desired: list[Any], live: Any, path: str) -> str:
    items: list[Any] = live if isinstance(live, list) else []
    if key := _list_key(desired):
        by_key = {item.get(key): item for item in items if isinstance(item, Mapping)}
        for item in desired:
            if found := difference(item, by_key.get(item[key]), f"{path}[{item[key]}]"):
                return found
        return ""
    if len(desired) != len(items):
        return path
    for index, (want, have) in enumerate(zip(desired, items, strict=True)):
        if found := difference(want, have, f"{path}[{index}]"):
            return found
    return ""


def _list_key(items: list[Any]) -> str:
    for key in _LIST_KEYS:
        named = [item.get(key) for item in items if isinstance(item, Mapping)]
        if items and all(isinstance(name, str | int) for name in named) and len(set(named)) == len(items):
            return key
    return ""


def _same_quantity(desired: Any, live: Any) -> bool:
    """Compare by value what may be a quantity: the apiserver writes `0.5` as `500m`."""
    if not isinstance(desired, str | int | float) or not isinstance(live, str | int | float):
        return False
    amount = _amount(str(desired))
    return amount is not None and amount == _amount(str(live))


def _amount(text: str) -> Decimal | None:
    number = text.rstrip("numkKMGTPi")
    try:
        return Decimal(number) * _SUFFIXES[text[len(number) :]]
    except (InvalidOperation, KeyError):
        return None
