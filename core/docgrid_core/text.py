"""Making any text fit for PostgreSQL: it stores neither NUL nor half of a surrogate pair."""

import re
from collections.abc import Mapping
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Return `text` without NUL characters; a lone surrogate becomes U+FFFD, a pair its character."""
    text = text.replace("\0", "")
    if text.isascii() or not _SURROGATE.search(text):
        return text
    # UTF-16 is the one encoding in which a pair of surrogates means its character.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_json(value: Any) -> Any:
    """Return a JSON value with every string in it cleaned, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(key): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    return value
