"""How results are printed: as a table, JSON, YAML or names. Every command prints through here.

JSON and YAML have the keys in camelCase, as the HTTP API has them, times in ISO 8601 (UTC) and durations in
seconds. Tables show times as ages. A name is `kind/id`, which the commands that take an id understand.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import unquote
from uuid import UUID

from docgrid_cli.terminal import console, note, printable

if TYPE_CHECKING:
    from docgrid_core.store.queries import Page

T = TypeVar("T")


class Format(StrEnum):
    """The values of `-o`."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column of a table. `wide` is cut or wrapped first when the window is narrow."""

    title: str
    value: Callable[[T], object]
    right: bool = False
    wide: bool = False


@dataclass(frozen=True)
class View(Generic[T]):
    """How one kind of row is shown; `empty` is said instead of a table without rows."""

    columns: Sequence[Column[T]]
    name: Callable[[T], str]
    empty: str


def show_all(rows: Sequence[T], view: View[T], output: Format) -> None:
    """Print rows of one kind."""
    if output is Format.NAME:
        _print_lines(view.name(row) for row in rows)
    elif output is Format.TABLE:
        show_table(rows, view)
    else:
        show_value(rows, output)


def show_value(value: object, output: Format) -> None:
    """Print a dataclass, or a list of them, as JSON or YAML."""
    if output is Format.YAML:
        import yaml

        yaml.safe_dump(plain(value), sys.stdout, sort_keys=False, allow_unicode=True)
    else:
        print(json.dumps(plain(value), ensure_ascii=False, indent=2))


def show_table(rows: Sequence[T], view: View[T]) -> None:
    """Print rows as a table, or that there are none."""
    if not rows:
        print(view.empty)
        return
    _print_table(build_table(rows, view))


def show_page(page: "Page[T]", view: View[T], output: Format) -> None:
    """Print one page of a list; a table says on stderr when there is more."""
    show_all(page.items, view, output)
    if output is Format.TABLE and page.total.value > len(page.items) > 0:
        note(f"page {page.page}: {len(page.items)} of {page.total} (--page and --limit show others)")


def show_facts(title: str, facts: Mapping[str, object]) -> None:
    """Print what is known of one thing, a fact a line."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for name, fact in facts.items():
        if fact not in {None, ""}:
            table.add_row(Text(f"  {name}"), _cell(Text, fact))
    console().print(Text(printable(title), style="bold"))
    _print_table(table)


def build_table(rows: Sequence[T], view: View[T]) -> Any:
    """Return a rich table of rows: for a terminal, or a live display."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in view.columns:
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.wide,
            overflow="fold" if column.wide else "ellipsis",
        )
    for row in rows:
        table.add_row(*(_cell(Text, column.value(row)) for column in view.columns))
    return table


def age(moment: datetime | None) -> str:
    """Return how long ago a moment is, as `12s`, `3m`, `5h` or `2d`; `-` for none."""
    return "-" if moment is None else span(datetime.now(UTC) - moment)


def span(length: timedelta | None) -> str:
    """Return a length of time in its largest unit; `-` for none."""
    if length is None:
        return "-"
    seconds = max(0, int(length.total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def plain(value: object) -> Any:
    """Return a value as JSON and YAML know them: dictionaries, lists, texts, numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return {_camel(field.name): plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    raise TypeError(f"a {type(value).__name__} can not be printed")


def source_of(uri: str) -> str:
    """Return where a document comes from as a person writes it: a local file as its path."""
    return unquote(uri.removeprefix("file://")) if uri.startswith("file://") else uri


_STYLES = {
    "INDEXED": "green",
    "SUCCESS": "green",
    "ACTIVE": "green",
    "PROCESSING": "cyan",
    "INDEXING": "cyan",
    "STARTED": "cyan",
    "FAILED": "red",
    "DEAD": "red",
    "CANCELED": "yellow",
    "DELETED": "yellow",
}


def _cell(text_type: Any, value: object) -> Any:
    shown = "-" if value is None or value == "" else printable(str(value))
    return text_type(shown, style=_STYLES.get(shown, ""))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _print_table(table: Any) -> None:
    out = console()
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    _print_lines(line.rstrip() for line in captured.get().splitlines())


def _print_lines(lines: Any) -> None:
    for line in lines:
        print(line)
