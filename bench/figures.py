"""What a benchmark yields: figures that are judged against a target, and the samples behind them."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Say = Callable[[str], None]
"""Tells whoever watches how far a benchmark has come."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value beside what it is compared with; `ratio` is None where the target is absolute."""

    what: str
    figure: str
    against: str
    ratio: float | None
    to_reach: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one benchmark; `details` hold the numbers behind them, fit for JSON."""

    figures: Sequence[Figure]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark by its id; `how` says how it measures, for the page."""

    id: str
    title: str
    how: str
    run: Callable[[Say], Outcome]


def at_least(what: str, value: float, base: float, *, unit: str, target: float) -> Figure:
    """Return a figure whose ratio to `base` must reach `target` or more."""
    ratio = value / base
    return Figure(
        what, f"{value:,.0f} {unit}", f"{base:,.0f} {unit}", ratio, f"≥ {target:g}", ratio >= target
    )


def at_most(what: str, value: float, base: float, *, unit: str, target: float) -> Figure:
    """Return a figure whose ratio to `base` must stay at `target` or less."""
    ratio = value / base
    return Figure(what, f"{value:.2f} {unit}", f"{base:.2f} {unit}", ratio, f"≤ {target:g}", ratio <= target)


def below(what: str, value: float, *, unit: str, limit: float, note: str = "") -> Figure:
    """Return a figure that must stay below an absolute limit; `note` says what it may be compared with."""
    return Figure(what, f"{value:.3g} {unit}", note, None, f"< {limit:g} {unit}", value < limit)


def percentile(samples: Sequence[float], percent: float) -> float:
    """Return the smallest sample that `percent` % of them do not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, round(len(ordered) * percent / 100 + 0.5) - 1))]


def median_pair(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the pair whose ratio is the median of all: noise that hit both of a pair leaves it as it is."""
    ratios = [value / base for value, base in pairs]
    return pairs[ratios.index(statistics.median_low(ratios))]
