"""The plot of the page: jobs by number of workers, and claims in two queues; an SVG, drawn by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.figures import median_pair

_WIDTH, _HEIGHT = 380, 230
_LEFT, _TOP = 60, 50
_COLOURS = ("#1f6feb", "#8b949e")
_STYLE = "font: 12px sans-serif; background: white"

Line = tuple[str, Sequence[float]]
"""A name and one value for each place on the axis."""


def draw(details: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the plot for the results that are there."""
    panels = []
    if "Q1" in details:
        panels.append(_throughput(details["Q1"]["jobs_per_second"]))
    if "Q2" in details:
        panels.append(_claims(details["Q2"]))
    width = max(1, len(panels)) * (_WIDTH + _LEFT + 60)
    shifted = [
        f'<g transform="translate({number * (_WIDTH + _LEFT + 60)},0)">{panel}</g>'
        for number, panel in enumerate(panels)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_TOP + _HEIGHT + 60}"'
        f' style="{_STYLE}">\n' + "\n".join(shifted) + "\n</svg>\n"
    )


def _throughput(pairs: Mapping[str, Sequence[Sequence[float]]]) -> str:
    medians = [median_pair([(pair[0], pair[1]) for pair in taken]) for taken in pairs.values()]
    lines = [("DocGrid", [pair[0] for pair in medians]), ("bare psycopg", [pair[1] for pair in medians])]
    return _panel("Q1: jobs/s, claim to finish, by workers", list(pairs), lines)


def _claims(details: Mapping[str, Any]) -> str:
    levels = details["milliseconds"]
    places = [f"p{percent}" for percent in details["percents"]]
    lines = [("1 M ready + 1 M finished + 100 k delayed", levels["long"]), ("1 k ready", levels["short"])]
    return _panel("Q2: milliseconds of a claim, by percentile", places, lines)


def _panel(title: str, places: Sequence[str], lines: Sequence[Line]) -> str:
    top = max(max(values) for _name, values in lines) * 1.1
    parts = [f'<text x="{_LEFT}" y="18" font-weight="bold">{title}</text>', *_grid(top)]
    for place, label in enumerate(places):
        parts.append(
            f'<text x="{_x(place, places):.0f}" y="{_TOP + _HEIGHT + 18}" text-anchor="middle">{label}</text>'
        )
    for number, (name, values) in enumerate(lines):
        parts += _line(values, places, top=top, colour=_COLOURS[number])
        parts.append(f'<text x="{_LEFT + 8}" y="{34 + 14 * number}" fill="{_COLOURS[number]}">{name}</text>')
    return "\n".join(parts)


def _grid(top: float) -> list[str]:
    parts = []
    for step in range(5):
        value, y = top * step / 4, _y(top * step / 4, top)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.0f}" x2="{_LEFT + _WIDTH}" y2="{y:.0f}" stroke="#d0d7de"/>')
        label = f"{value:,.0f}" if top > 20 else f"{value:.1f}"
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{label}</text>')
    return parts


def _line(values: Sequence[float], places: Sequence[str], *, top: float, colour: str) -> list[str]:
    points = [(_x(place, places), _y(value, top)) for place, value in enumerate(values)]
    path = " ".join(f"{x:.0f},{y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.0f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *dots]


def _x(place: int, places: Sequence[str]) -> float:
    return _LEFT + _WIDTH * (place + 0.5) / len(places)


def _y(value: float, top: float) -> float:
    return _TOP + 10 + (_HEIGHT - 10) * (1 - value / top)
