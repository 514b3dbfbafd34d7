"""The types of fields: what pydantic checks, and what the schema says of the same to the apiserver.

A text's pattern is a CEL rule in the schema, because the apiserver then says the rule in words; `WithJsonSchema`
stands where Kubernetes knows more than JSON schema does: durations, quantities, a number or a percentage.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, PlainValidator, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from docgrid_core.settings import NonNegativeDuration, PositiveDuration

MAX_INT32 = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Matches:
    """The pattern of a text that is not empty, and its rule in words."""

    pattern: str
    rule: str
    longest: int

    def check(self, value: str) -> str:
        """Return the text; raises `ValueError` with the rule that it breaks."""
        if len(value) > self.longest or not re.search(self.pattern, value):
            raise ValueError(self.rule)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        quoted = self.pattern.replace("\\", "\\\\")
        return {
            "type": "string",
            "maxLength": self.longest,
            **_rule(f"self.matches('{quoted}')", self.rule),
        }


def _rule(cel: str, message: str, **more: str) -> dict[str, Any]:
    return {"x-kubernetes-validations": [{"rule": cel, "message": message, **more}]}


# The format makes it a duration to CEL. No number of so few digits overflows one, whatever its unit.
_DURATION: dict[str, Any] = {
    "type": "string",
    "format": "duration",
    "maxLength": 16,
    "pattern": r"^([0-9]{1,6}(\.[0-9]{1,3})?(s|m|h)|[0-9]{1,6}ms)+$",
}

Interval = Annotated[
    PositiveDuration,
    WithJsonSchema(
        _DURATION
        | _rule(
            "self > duration('0s') && self <= duration('87600h')",
            "must be greater than 0 and at most ten years",
        )
    ),
]
"""A duration greater than 0."""

GracePeriod = Annotated[
    NonNegativeDuration,
    WithJsonSchema(
        _DURATION
        | _rule(
            "self >= duration('0s') && self <= duration('87600h')",
            "must be 0s or more, and at most ten years",
        )
    ),
]
"""A duration that may be 0."""

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"

SecretName = Annotated[
    str,
    Matches(
        rf"^{_LABEL}(\.{_LABEL})*$",
        "must be the name of a Secret: lower-case letters, digits, - and .",
        longest=253,
    ),
]
"""The name of a Secret."""

SecretKey = Annotated[
    str,
    Matches(r"^[-._a-zA-Z0-9]+$", "must be a key of a Secret: letters, digits, -, _ and .", longest=253),
]
"""A key of a Secret's data."""

ImageName = Annotated[str, Matches(r"^\S+$", "must be the name of an image, without spaces", longest=1024)]
"""The name of a container image."""

Address = Annotated[
    str, Matches(r"^https?://[^/\s]\S*$", "must be an http:// or https:// address", longest=2048)
]
"""The root of an HTTP server."""

Endpoint = Annotated[str, Matches(r"^[^/\s]+$", "must be host:port, without scheme and path", longest=300)]
"""Host and port."""

Text = Annotated[str, Field(min_length=1, max_length=255)]
"""A short text."""


_PERCENTAGE = "^(100|[1-9]?[0-9])%$"
_NUMBER_OR_PERCENTAGE = "must be a number, 0 or more, or a percentage such as 50%"


def _number_or_percentage(value: Any) -> int | str:
    match value:
        case str() if re.search(_PERCENTAGE, value):
            return value
        case int() if not isinstance(value, bool) and 0 <= value <= MAX_INT32:
            return value
    raise ValueError(_NUMBER_OR_PERCENTAGE)


NumberOrPercentage = Annotated[
    int | str,
    PlainValidator(_number_or_percentage),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 4,
            **_rule(
                f"type(self) == string ? self.matches('{_PERCENTAGE}') : self >= 0 && self <= {MAX_INT32}",
                _NUMBER_OR_PERCENTAGE,
            ),
        }
    ),
]
"""A number of workers, or a part of them."""

_QUANTITIES: dict[str, Any] = {
    "type": "object",
    "maxProperties": 16,
    "additionalProperties": {
        "x-kubernetes-int-or-string": True,
        "maxLength": 32,
        **_rule(
            "type(self) == string ? isQuantity(self) && !quantity(self).isLessThan(quantity('0')) : self >= 0",
            "must be a quantity, 0 or more, such as 500m or 2Gi",
        ),
    },
}
_TOO_MUCH = (
    "name in self.limits && isQuantity(string(self.requests[name])) && isQuantity(string(self.limits[name]))"
    " && quantity(string(self.requests[name])).isGreaterThan(quantity(string(self.limits[name])))"
)

ContainerResources = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {
                "requests": {"description": "What is set aside for a worker.", **_QUANTITIES},
                "limits": {"description": "What a worker may not exceed.", **_QUANTITIES},
            },
            **_rule(
                f"!has(self.requests) || !has(self.limits) || !self.requests.exists(name, {_TOO_MUCH})",
                "must each be at most the limit of the same name",
                fieldPath=".requests",
            ),
        }
    ),
]
"""The resources of a container, as Kubernetes takes them."""
