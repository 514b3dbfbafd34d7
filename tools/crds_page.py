"""The field reference of the CustomResourceDefinitions, made from themselves; tools/generate_crds.py calls it."""

import json
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

HEAD = """# Custom resources

What the operator's kinds hold. `kubectl explain indexingworkers.spec --recursive` says the same in a cluster. A field that is wrong is refused when it is applied, with its path and its rule; the samples are in [manifests/samples](../../manifests/samples/README.md).

This page is made by `tools/generate_crds.py` from `docgrid_operator.api.v1alpha1`.
"""  # noqa: E501 - a paragraph of the page

_TEXT = "text"
_OPAQUE = "x-kubernetes-preserve-unknown-fields"


def build_page(definitions: list[Schema]) -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(build_kind(definition) for definition in definitions)])


def build_kind(definition: Schema) -> str:
    """Return the part about one kind: how it is asked for, its columns, its fields."""
    names, version = definition["spec"]["names"], definition["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]
    columns = version["additionalPrinterColumns"]
    lines = [
        f"## {names['kind']}",
        f"`{definition['spec']['group']}/{version['name']}` · `kubectl get {names['shortNames'][0]}`",
        "",
        root["description"],
        "",
        f"Columns: {_names(columns, wide=False)}; with `-o wide` also {_names(columns, wide=True)}.",
        *_asides(version, root),
    ]
    for part in ("spec", "status"):
        lines += ["", f"### {names['kind']} {part}", root["properties"][part]["description"], ""]
        lines += ["| field | value | default | about |", "|---|---|---|---|"]
        lines += build_rows(root["properties"][part], part)
    return "\n".join([*lines, ""])


def build_rows(schema: Schema, path: str) -> Iterator[str]:
    """Yield a row for each field of an object, and then for the fields of that."""
    rules = {rule.get("fieldPath", "").removeprefix("."): rule["message"] for rule in _rules(schema)}
    for name, field in schema.get("properties", {}).items():
        inner = field.get("items", field)
        broken = [rule["message"] for rule in _rules(field) if "fieldPath" not in rule]
        broken += [rules[name]] if name in rules else []
        known = describe_value(field)
        values = broken if known == _TEXT and broken else [known, *broken]
        default = "**required**" if name in schema.get("required", []) else describe_default(field)
        yield f"| `{path}.{name}` | {_cell('; '.join(values))} | {default} | {_cell(field['description'])} |"
        yield from build_rows(inner, f"{path}.{name}" + ("[]" if inner is not field else ""))


def describe_value(field: Schema) -> str:
    """Return what may be given."""
    if "enum" in field:
        return " or ".join(f"`{choice}`" for choice in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "number or percentage"
    if _is_duration(field):
        return "duration"
    if field["type"] == "integer":
        return " ".join(filter(None, ["whole number", _bounds(field)]))
    if field["type"] == "object":
        return _describe_object(field)
    known = {"boolean": "`true` or `false`", "array": "list"}
    if field.get("format") == "date-time":
        return "time"
    return known.get(field["type"], _TEXT)


def describe_default(field: Schema) -> str:
    """Return the default as it would be written; an object's is in its fields."""
    default = field.get("default")
    if default in (None, {}, []):
        return ""
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def _describe_object(field: Schema) -> str:
    inner = field.get("additionalProperties")
    if inner:
        return "names and quantities" if inner.get("x-kubernetes-int-or-string") else "names and texts"
    return "object, any fields" if field.get(_OPAQUE) else "object"


def _asides(version: Schema, root: Schema) -> Iterator[str]:
    for rule in _rules(root):
        yield f"{rule['message']}."
    for selectable in version.get("selectableFields", []):
        yield f"`--field-selector {selectable['jsonPath'].removeprefix('.')}=…` works."
    if "scale" in version.get("subresources", {}):
        yield "`kubectl scale` and a HorizontalPodAutoscaler work on it."


def _rules(schema: Schema) -> list[Schema]:
    found: list[Schema] = schema.get("x-kubernetes-validations", [])
    return found


def _is_duration(field: Schema) -> bool:
    return "(ms|s|m|h)" in field.get("pattern", "")


def _bounds(field: Schema) -> str:
    least, most = field.get("minimum"), field.get("maximum")
    if least is None:
        return ""
    return f"≥ {least}" if most in (None, 2**31 - 1) else f"{least} to {most}"


def _names(columns: list[Schema], *, wide: bool) -> str:
    return ", ".join(c["name"].upper() for c in columns if bool(c.get("priority")) is wide)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
