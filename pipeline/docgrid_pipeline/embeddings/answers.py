"""Reads what an OpenAI-compatible server answers: vectors on success, the reason otherwise."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

from docgrid_core.errors import (
    FaultError,
    ProviderMisconfigured,
    ProviderRefused,
    ProviderUnavailable,
    VectorInvalid,
)
from docgrid_core.records import EmbeddingModel
from docgrid_core.vectors import Vectors, check_vectors

_TRY_AGAIN = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_NOT_LET_IN = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.PAYMENT_REQUIRED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}
)
_LONGEST_WAIT = 86_400.0  # seconds


def read_answer(body: bytes, *, count: int, model: EmbeddingModel) -> Vectors:
    """Return the vectors of an answer to `count` texts, in the order of the texts.

    Raises `ProviderUnavailable` when the body is no JSON (a proxy's page, a cut answer), `VectorInvalid` when
    it does not hold exactly one vector of `model` for each text.
    """
    answer = _parse(body)
    if not isinstance(answer, dict) or not isinstance(answer.get("data"), list):
        raise VectorInvalid("the answer holds no list of embeddings")
    # A server may answer with the exact version of the model that it was asked for by name.
    if answer.get("model") not in (None, model.name, model.version):
        raise VectorInvalid("another model answered")
    items = answer["data"]
    if len(items) != count or not all(isinstance(item, dict) for item in items):
        raise VectorInvalid(f"{len(items)} embeddings for {count} texts")
    vectors = [item.get("embedding") for item in _in_order(items)]
    return check_vectors(vectors, count=count, dimension=model.dimension)


def failure(status: int, headers: Mapping[str, str]) -> FaultError:
    """Return the error that an answer with another status than 2xx means."""
    detail = f"HTTP {status}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in _TRY_AGAIN:
        return ProviderUnavailable(detail, retry_after=_retry_after(headers))
    return ProviderMisconfigured(detail) if status in _NOT_LET_IN else ProviderRefused(detail)


def _parse(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        # From None: the decoder's error carries the body.
        raise ProviderUnavailable("the answer is not JSON") from None


def _in_order(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items by their index; without any index the given order counts."""
    indexes = [item.get("index") for item in items]
    if all(index is None for index in indexes):
        return items
    if any(type(index) is not int for index in indexes) or set(indexes) != set(range(len(items))):
        raise VectorInvalid("the indexes of the embeddings are not those of the texts")
    return sorted(items, key=lambda item: int(item["index"]))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the wait in seconds that the server asks for: a number or an HTTP date (RFC 9110, 10.2.3)."""
    value = headers.get("retry-after", "").strip()
    if value.isdecimal():
        return min(float(value), _LONGEST_WAIT)
    until = _http_date(value)
    if until is None:
        return None
    # Against the server's own clock where it tells it: ours may be wrong.
    now = _http_date(headers.get("date", "")) or datetime.now(UTC)
    return min(max(0.0, (until - now).total_seconds()), _LONGEST_WAIT)


def _http_date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
