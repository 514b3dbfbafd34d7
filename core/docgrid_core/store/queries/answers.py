"""What answers are made of: pages, counts that stop, rows as values, and one snapshot for all parts."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from sqlalchemy import RowMapping, text

from docgrid_core.database import Transaction
from docgrid_core.errors import BadParameter

T = TypeVar("T")

COUNT_LIMIT = 10_000
MAX_PAGE_SIZE = 500

SNAPSHOT = text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows; `is_capped` says that counting stopped there, and there are more."""

    value: int
    is_capped: bool = False

    def __str__(self) -> str:
        return f"{self.value}+" if self.is_capped else str(self.value)


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; pages count from 0."""

    items: tuple[T, ...]
    page: int
    size: int
    total: Count


def capped(counted: int) -> Count:
    """Return the count for a query that was limited to `COUNT_LIMIT` + 1 rows."""
    return Count(min(counted, COUNT_LIMIT), counted > COUNT_LIMIT)


def read_snapshot(tx: Transaction) -> None:
    """Let every statement of this transaction see the same rows; to be called first."""
    tx.execute(SNAPSHOT)


def check_page(page: int, size: int) -> None:
    """Raise `BadParameter` for a page that can not be asked for: lists can be paged as far as they are counted."""
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise BadParameter(f"a page has 1 to {MAX_PAGE_SIZE} rows, not {size}")
    if page < 0 or page * size >= COUNT_LIMIT:
        raise BadParameter(f"pages begin at 0 and end at row {COUNT_LIMIT}: narrow the list instead")


def build(kind: Callable[..., T], row: RowMapping, **enums: type[StrEnum]) -> T:
    """Return the value whose fields are the columns of `row`; `enums` says which of them are names of states."""
    states = {name: None if row[name] is None else enum(row[name]) for name, enum in enums.items()}
    return kind(**{**row, **states})
