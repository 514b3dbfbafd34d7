"""Write docs/operations/settings.md from the settings models; with `--check`, tell whether it is up to date.

`make check` calls it with `--check`; whoever changes a setting calls it without.
"""

import ast
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from docgrid_core.durations import format_duration
from docgrid_core.settings import SECTIONS, NonNegativeDuration, PositiveDuration, Section
from docgrid_operator.settings import OperatorSettings

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations" / "settings.md"

SHOWN: tuple[type[Section], ...] = (*SECTIONS, OperatorSettings)

HEAD = """# Settings

Environment variables, read once when a process starts. A wrong one is named with its value and its rule, and nothing starts. An empty one counts as not set. Durations are written like `30s`, `5m`, `1h30m` (units `ms`, `s`, `m`, `h`).

A worker reads all sections but the operator's. The operator reads Database, Operator, Worker, Maintenance and Log; of Worker it uses how failed jobs are retried, which it hands on to its workers: all else they get from their [IndexingWorker](crds.md). Commands read what they need; without `DOCGRID_DATABASE_URL` they take database, storage and embedding server from the local stack.

This page is made by `tools/settings_page.py` from `docgrid_core.settings` and `docgrid_operator.settings`.
"""  # noqa: E501 - a paragraph of the page

_PAIR = re.compile(r'_require_(less|at_most)\(self, "(\w+)", "(\w+)"\)')
_WORDS = {"less": "less than", "at_most": "at most"}


def main() -> int:
    """Write the page or check it; return 1 if it has to be written again."""
    page = build_page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
        return 0
    if PAGE.exists() and PAGE.read_text() == page:
        return 0
    print("docs/operations/settings.md is not up to date: run .venv/bin/python tools/settings_page.py")
    return 1


def build_page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *(build_section(section) for section in SHOWN)])


def build_section(section: type[Section]) -> str:
    """Return heading and table of one section."""
    prefix = section.model_config["env_prefix"]
    lines = [
        f"## {prefix.rstrip('_').removeprefix('DOCGRID_').capitalize()}",
        inspect.cleandoc(section.__doc__ or ""),
        "",
        "| key | value | default | about |",
        "|---|---|---|---|",
    ]
    pairs, descriptions = dict(find_pairs(section)), dict(find_descriptions(section))
    for name, field in section.model_fields.items():
        rule = "; ".join(filter(None, [describe_value(field), pairs.get(name)]))
        # A setting without a description fails here.
        lines.append(
            f"| `{prefix}{name.upper()}` | {rule} | {describe_default(field)} | {descriptions[name]} |"
        )
    return "\n".join([*lines, ""])


def find_pairs(section: type[Section]) -> Iterator[tuple[str, str]]:
    """Yield each setting that is limited by another one of its section, and the rule."""
    prefix = section.model_config["env_prefix"]
    for kind, smaller, larger in _PAIR.findall(inspect.getsource(section)):
        yield smaller, f"{_WORDS[kind]} `{prefix}{larger.upper()}`"


def find_descriptions(section: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield each field of a model and the string that stands below it; pydantic would read them at every import."""
    (definition,) = ast.parse(inspect.getsource(section)).body
    for field, below in itertools.pairwise(definition.body if isinstance(definition, ast.ClassDef) else []):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = ast.literal_eval(below.value) if isinstance(below, ast.Expr) else ""
            yield field.target.id, " ".join(text.split())


def describe_value(field: FieldInfo) -> str:
    """Return what may be given."""
    kind: Any = field.annotation
    if kind is timedelta:
        return "duration > 0" if _has_validator_of(field, PositiveDuration) else "duration ≥ 0"
    if get_origin(kind) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(kind))
    if "SecretStr" in str(kind):
        return "secret"
    if kind is bool:
        return "`true` or `false`"
    return " ".join(filter(None, [{int: "whole number", float: "number"}.get(kind, "text"), _bounds(field)]))


def describe_default(field: FieldInfo) -> str:
    """Return the default as it would be given."""
    if field.is_required():
        return "**required**"
    value = field.default
    if isinstance(value, timedelta):
        return f"`{format_duration(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value not in ("", None) else ""


def _has_validator_of(field: FieldInfo, duration: Any) -> bool:
    own = set(map(repr, get_args(duration)[1:])) - set(map(repr, get_args(NonNegativeDuration)[1:]))
    return own <= set(map(repr, field.metadata))


def _bounds(field: FieldInfo) -> str:
    limits = {
        name: value
        for part in field.metadata
        for name in ("ge", "le", "min_length", "max_length")
        if (value := getattr(part, name, None)) is not None
    }
    if "max_length" in limits:
        return f"of {limits['min_length']} to {limits['max_length']} characters"
    if "min_length" in limits:
        return "that is not empty"
    if "le" in limits:
        return f"{limits['ge']} to {limits['le']}"
    return f"≥ {limits['ge']}" if limits else ""


if __name__ == "__main__":
    sys.exit(main())
