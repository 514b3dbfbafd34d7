"""Durations in Go syntax (`30s`, `5m`, `1h30m`), as Kubernetes users write them."""

import re
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_UNITS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
_RULE = "must be a duration like 30s, 5m or 1h30m (units ms, s, m, h)"
_MAX_SECONDS = Decimal(10 * 365 * 24 * 3600)


def parse_duration(text: str) -> timedelta:
    """Return the duration that `text` names; `0` needs no unit.

    Raises `ValueError` with the rule when it names none, or one of over ten years.
    """
    if text == "0":
        return timedelta(0)
    if not re.fullmatch(PATTERN, text):
        raise ValueError(_RULE)
    seconds = sum((Decimal(number) * _UNITS[unit] for number, unit in _PART.findall(text)), Decimal(0))
    if seconds > _MAX_SECONDS:
        raise ValueError("must be at most ten years")
    return timedelta(milliseconds=float(seconds * 1000))


def format_duration(value: timedelta) -> str:
    """Return `value`, 0 or more, in Go syntax to the millisecond, without zero parts: `1m30s`."""
    milliseconds = round(value.total_seconds() * 1000)
    parts = []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _validate(value: Any) -> Any:
    if isinstance(value, str):
        return parse_duration(value.strip())
    if isinstance(value, timedelta):
        return value
    raise ValueError(_RULE)  # a bare number would be taken for seconds


Duration = Annotated[
    timedelta, BeforeValidator(_validate), PlainSerializer(format_duration, return_type=str, when_used="json")
]
"""A pydantic field type: accepts Go syntax or a timedelta, serializes to Go syntax."""
