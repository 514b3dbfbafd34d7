"""A pytest plugin: tests run layer by layer, and the run ends with a table that says which layers ran.

A test's layer is the first folder under tests/. A layer all of whose tests were skipped could not run on this
machine; the table gives the reason. With `CI=true` nothing may be missing: every skipped test fails the run.
Under `coverage run` (as in `make test`) the table ends with the branch coverage of docgrid_core.
"""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import coverage
import pytest

TESTS = Path(__file__).parent.parent
LAYERS = ("unit", "core", "model", "worker", "api", "cli", "operator", "e2e", "chaos")
"""In the order in which they run: what fails fast and explains most comes first."""

LEAST_BRANCHES = 95.0
"""Percent of the branches of docgrid_core that a whole run has to take."""


@dataclass(slots=True)
class Layer:
    """What happened to the tests of one layer."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def verdict(self) -> str:
        """Say in a word how the layer came out and, if it could not run, why."""
        reason = self.reasons.most_common(1)[0][0] if self.reasons else ""
        if self.failed:
            return "FAILED"
        if self.skipped and not self.passed:
            return f"could not run: {reason}"
        return f"passed, but for {self.skipped}: {reason}" if self.skipped else "passed"


class LayerPlugin:
    """Orders the tests, counts their outcomes by layer, and prints the table."""

    def __init__(self, config: pytest.Config) -> None:
        self._whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        self._absent = "did not run" if self._whole else "not asked for"
        self._strict = os.environ.get("CI") == "true"
        self._layers: dict[str, Layer] = {}
        self._branches: float | None = None
        self._complaints: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Put the layers in order; inside one the order stays."""
        items.sort(key=lambda item: LAYERS.index(layer_of(item.nodeid)))

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Note that this run leaves tests out on purpose."""
        self._whole = self._whole and not items

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a module that skips itself."""
        if report.skipped:
            self._count_skip(self._layer(report.nodeid), report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of one test."""
        layer = self._layer(report.nodeid)
        layer.seconds += report.duration
        if report.failed:
            layer.failed += 1
        elif report.skipped and not hasattr(report, "wasxfail"):
            self._count_skip(layer, report.longrepr)
        elif report.when == "call":
            layer.passed += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Turn what a whole run must not leave out into a failure."""
        measured = coverage.Coverage.current()
        ran = session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}
        if ran and self._whole and measured is not None:
            self._branches = branch_coverage(measured)
            if self._branches < LEAST_BRANCHES:
                self._complaints.append(f"fewer than {LEAST_BRANCHES:g} % of the branches of docgrid_core")
        if self._strict:
            self._complaints += [
                f"CI=true, but in layer {name} {layer.skipped} skipped"
                for name, layer in self._layers.items()
                if layer.skipped
            ]
        if self._complaints and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Iterator[None]:
        """Print the table below everything else."""
        yield
        terminalreporter.section("layers")
        terminalreporter.write_line(f"{'layer':<10}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}")
        for name in LAYERS:
            if layer := self._layers.get(name):
                counts = f"{layer.passed:>8}{layer.failed:>8}{layer.skipped:>8}{layer.seconds:>9.1f}"
                terminalreporter.write_line(f"{name:<10}{counts}  {layer.verdict}")
            elif (TESTS / name).is_dir():
                terminalreporter.write_line(f"{name:<10}{self._absent:>35}")
        if self._branches is not None:
            terminalreporter.write_line(f"branches of docgrid_core taken: {self._branches:.1f} %")
        for complaint in self._complaints:
            terminalreporter.write_line(f"FAILED: {complaint}", red=True)

    def _layer(self, nodeid: str) -> Layer:
        return self._layers.setdefault(layer_of(nodeid), Layer())

    @staticmethod
    def _count_skip(layer: Layer, why: object) -> None:
        layer.skipped += 1
        reason = why[2] if isinstance(why, tuple) else str(why)
        layer.reasons[reason.removeprefix("Skipped: ")] += 1


def layer_of(nodeid: str) -> str:
    """Return the layer of a test or a module by its pytest id, which starts with tests/<layer>/."""
    layer = Path(nodeid.partition("::")[0]).parts[1]
    if layer not in LAYERS:
        raise pytest.UsageError(f"{nodeid}: a test belongs in one of tests/{{{','.join(LAYERS)}}}")
    return layer


def branch_coverage(measured: coverage.Coverage) -> float:
    """Stop measuring and return the percentage of the branches that were taken."""
    measured.stop()
    measured.save()
    reader = coverage.Coverage(messages=False)
    reader.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        reader.json_report(outfile=str(report))
        totals = json.loads(report.read_text())["totals"]
    return 100.0 * float(totals["covered_branches"]) / max(1.0, float(totals["num_branches"]))


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(LayerPlugin(config), "docgrid-layers")
