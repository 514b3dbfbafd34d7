"""The structural schema of a model of the operator's API, as a CustomResourceDefinition takes it.

tools/generate_crds.py calls `build_schema`. Kubernetes allows less than JSON schema: no references, no null, a
default as it would be written in YAML. Descriptions are the strings below fields, else a class's docstring.
"""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from docgrid_core.durations import format_duration
from docgrid_operator.api.v1alpha1.model import ApiModel, Rule
from settings_page import find_descriptions

Schema = dict[str, Any]


def build_schema(model: type[ApiModel]) -> Schema:
    """Return the schema of a model with all that it contains; a field without a description is a `ValueError`."""
    schema = model.model_json_schema(by_alias=True, schema_generator=_Structural)
    structural: Schema = _inline(schema, schema.pop("$defs", {}))
    _require_descriptions(structural, model.__name__)
    return structural


def build_rule(model: type[ApiModel], rule: Rule) -> Schema:
    """Return a rule of a model as an item of `x-kubernetes-validations`.

    Who breaks a rule between two fields may have written the other one: the message tells the default of this one.
    """
    field = model.model_fields.get(rule.field)
    default = field.default if field and not field.is_required() else None
    shown = format_duration(default) if isinstance(default, timedelta) else default
    written = {
        "rule": rule.cel,
        "message": f"{rule.message}; its own default is {shown}" if shown else rule.message,
        "reason": rule.reason,
        "fieldPath": f".{to_camel(rule.field)}" if rule.field else "",
    }
    return {name: value for name, value in written.items() if value}


class _Structural(GenerateJsonSchema):
    """pydantic's generator, less what Kubernetes refuses, plus what it adds."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        written = super().model_schema(schema)
        model = schema["cls"]
        for name, text in find_descriptions(model):
            alias = to_camel(name)
            if text and alias in written.get("properties", {}):
                written["properties"][alias]["description"] = text
        written["description"] = " ".join((model.__doc__ or "").split())
        if issubclass(model, ApiModel) and model.rules:
            written["x-kubernetes-validations"] = [build_rule(model, rule) for rule in model.rules]
        return written

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if schema.get("default") in (None, ""):  # what may be left out and then is not there
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, BaseModel):
            return {}  # its fields have defaults of their own
        return format_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)


def _inline(schema: Any, definitions: Schema) -> Any:
    """Put what a reference names in its place, where what stands beside it wins; leave out titles."""
    if isinstance(schema, list):
        return [_inline(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inlined = {
        name: _inline(value, definitions)
        for name, value in schema.items()
        if name != "$ref" and not (name == "title" and isinstance(value, str))
    }
    if "$ref" not in schema:
        return inlined
    return {**_inline(definitions[schema["$ref"].rpartition("/")[2]], definitions), **inlined}


def _require_descriptions(schema: Schema, path: str) -> None:
    for name, field in schema.get("properties", {}).items():
        if not field.get("description"):
            raise ValueError(f"{path}.{name} has no description")
        _require_descriptions(field.get("items", field), f"{path}.{name}")
