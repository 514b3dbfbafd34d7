"""Making any text fit for PostgreSQL: it stores neither NUL nor half of a surrogate pair."""

import re
from collections.abc import Mapping
from typing import Any

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Return `text` without NUL characters, lone surrogates replaced by U+FFFD, real characters kept."""
    if "\0" in text:
        text = text.replace("\0", "")
    return text if text.isascii() else _LONE_SURROGATE.sub("�", text)


def clean_json(value: Any) -> Any:
    """Return a JSON value with every string in it cleaned, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value
