"""Times as Kubernetes writes them."""

from datetime import UTC, datetime
from typing import overload


@overload
def format_time(moment: datetime) -> str: ...
@overload
def format_time(moment: None) -> None: ...
def format_time(moment: datetime | None) -> str | None:
    """Return a time in UTC to the whole second, None for None."""
    return None if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime:
    """Return the time that Kubernetes wrote."""
    return datetime.fromisoformat(text)
