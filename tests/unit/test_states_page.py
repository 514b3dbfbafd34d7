"""The page of states says what the code says: every state, every move, every start and every end."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from docgrid_core import jobs
from docgrid_core.jobs import (
    ATTEMPT_MOVES,
    DOCUMENT_MOVES,
    EMBEDDING_MOVES,
    JOB_MOVES,
    VERSION_MOVES,
    WORKER_MOVES,
    EventType,
)

PAGE = Path(__file__).parents[2] / "docs" / "design" / "states.md"

MACHINES: Mapping[str, Mapping[Any, frozenset[Any]]] = {
    "Job": JOB_MOVES,
    "Version": VERSION_MOVES,
    "Attempt": ATTEMPT_MOVES,
    "Worker": WORKER_MOVES,
    "Document": DOCUMENT_MOVES,
    "Embedding": EMBEDDING_MOVES,
}
FIRST_ROW = "(none)"
START_OR_END = "[*]"

each_machine = pytest.mark.parametrize("name", MACHINES)


def section(name: str) -> str:
    """Return what stands under one heading of the page."""
    (text,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert isinstance(text, str)
    return text


def table(name: str, *header: str) -> list[list[str]]:
    """Return the rows of the table of a section whose header begins with these words."""
    begin = "| " + " | ".join(header) + " "
    rows: list[list[str]] = []
    inside = False
    for line in section(name).splitlines():
        inside = line.startswith("|") and (inside or line.startswith(begin))
        if inside:
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows[2:]


def arrows(name: str) -> set[tuple[str, str]]:
    """Return the arrows of a section's chart."""
    return set(re.findall(r"^ +(\S+) --> (\S+)$", section(name), re.MULTILINE))


def in_code(name: str) -> set[tuple[str, str]]:
    """Return the moves as the code has them."""
    return {(str(state), str(target)) for state, targets in MACHINES[name].items() for target in targets}


def ends(name: str) -> set[str]:
    """Return the states that the code lets nothing leave."""
    return {str(state) for state, targets in MACHINES[name].items() if not targets}


def test_every_machine_of_the_code_is_on_the_page() -> None:
    assert {name for name in vars(jobs) if name.endswith("_MOVES")} == {
        f"{name.upper()}_MOVES" for name in MACHINES
    }


@each_machine
def test_the_chart_shows_the_moves_of_the_code(name: str) -> None:
    shown = {move for move in arrows(name) if START_OR_END not in move}
    assert shown == in_code(name)


@each_machine
def test_the_chart_begins_where_rows_are_made_and_ends_where_nothing_leaves(name: str) -> None:
    starts = {to for start, to in arrows(name) if start == START_OR_END}
    assert starts == {to for start, to, *_ in table(name, "from", "to") if start == FIRST_ROW}
    assert len(starts) == 1
    assert {start for start, to in arrows(name) if to == START_OR_END} == ends(name)


@each_machine
def test_the_table_names_the_moves_of_the_code_and_who_makes_them(name: str) -> None:
    rows = [row for row in table(name, "from", "to") if row[0] != FIRST_ROW]
    assert {(start, to) for start, to, *_ in rows} == in_code(name)
    assert all(cell for row in rows for cell in row)


@each_machine
def test_every_state_is_explained_once(name: str) -> None:
    assert sorted(row[0] for row in table(name, "state", "means")) == sorted(map(str, MACHINES[name]))


def test_every_event_of_a_job_is_on_the_page() -> None:
    words = set(re.findall(r"[A-Z_]+", section("Job")))
    assert set(map(str, EventType)) <= words
