"""What the models of this API have in common: camel case, defaults of the worker's settings, rules between fields.

Each rule stands once and is applied twice: by the apiserver, from its CEL expression in the generated schema, and
by `parse`, because an object may be older than the schema.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from docgrid_core.settings import Section


class InvalidObject(Exception):
    """An object from the apiserver is not one of its kind: `field` is the path, `rule` says what it has to be."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule that a pattern or a limit can not say, most often between two fields of one object.

    `field` is where it is reported; empty for the object itself.
    """

    field: str
    cel: str
    message: str
    holds: Callable[[Any], bool]
    reason: str = ""


def less_than(smaller: str, larger: str) -> Rule:
    """Return the rule that one field, a number or a duration, is less than another one."""
    return _compare("<", f"must be less than {to_camel(larger)}", (smaller, larger), operator.lt)


def at_most(smaller: str, larger: str) -> Rule:
    """Return the rule that one field, a number or a duration, is not greater than another one."""
    return _compare("<=", f"must be at most {to_camel(larger)}", (smaller, larger), operator.le)


def _compare(sign: str, message: str, fields: tuple[str, str], holds: Callable[[Any, Any], bool]) -> Rule:
    left, right = (f"self.{to_camel(field)}" for field in fields)
    return Rule(
        field=fields[0],
        # Both have defaults, but the default of the object that holds them is checked before it has them.
        cel=f"!has({left}) || !has({right}) || {left} {sign} {right}",
        message=message,
        holds=lambda model: holds(getattr(model, fields[0]), getattr(model, fields[1])),
    )


def setting(section: type[Section], name: str) -> Any:
    """Return a field with the default and the limits that a setting of the worker has."""
    source = section.model_fields[name]
    limits = {
        limit: value
        for part in source.metadata
        for limit in ("ge", "le", "min_length", "max_length")
        if (value := getattr(part, limit, None)) is not None
    }
    return Field(default=source.default, **limits)


class ApiModel(BaseModel):
    """An object within an object of this API; unknown fields are let pass, the apiserver has seen to them."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, strict=True
    )

    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        for rule in self.rules:
            if not rule.holds(self):
                raise PydanticCustomError("rule", "{rule}", {"rule": rule.message, "field": rule.field})
        return self


class Metadata(ApiModel):
    """What the operator reads of an object's metadata."""

    name: str
    """Name within the namespace."""
    namespace: str = ""
    """Namespace."""
    uid: str = ""
    """What tells the object from another one of its name."""
    generation: int = 0
    """How often its spec was changed."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations."""


class Resource(ApiModel):
    """A whole object; a kind adds its spec."""

    metadata: Metadata

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> Self:
        """Read an object as the apiserver answers it; raises `InvalidObject` for the first thing that is wrong."""
        try:
            return cls.model_validate(obj)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
        within = problem.get("ctx", {}).get("field")
        path = [*problem["loc"], *([to_camel(within)] if within else [])]
        raise InvalidObject(".".join(map(str, path)), problem["msg"].removeprefix("Value error, "))

    @property
    def name(self) -> str:
        """Its name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """What tells it from another one of its name."""
        return self.metadata.uid

    @property
    def generation(self) -> int:
        """How often its spec was changed."""
        return self.metadata.generation

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""
        return self.metadata.annotations
