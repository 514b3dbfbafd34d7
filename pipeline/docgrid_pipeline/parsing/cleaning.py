"""Makes any text storable in PostgreSQL: no NUL, no lone surrogate.

`parse` cleans everything a format yields; whoever stores a text from elsewhere (a file name, a title, a
query) calls `clean_text` itself.
"""

import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Return `text` without NUL characters; a lone surrogate becomes U+FFFD, a pair its character."""
    text = text.replace("\0", "")
    if not _SURROGATE.search(text):
        return text
    # UTF-16 is the one encoding in which a pair of surrogates means its character.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_metadata(value: Any) -> Any:
    """Return a JSON value with every text in it cleaned, keys included."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): clean_metadata(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clean_metadata(item) for item in value]
    return value
