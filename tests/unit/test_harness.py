"""A test run says what did not run and fails for what it left behind: shown on small runs of their own."""

import pytest

from support.layers import TESTS

HARNESS = 'pytest_plugins = ["support.layers", "support.leaks"]'


def run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], *, ci: bool = False
) -> pytest.RunResult:
    """Run these test files, given by layer, in a process of their own."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("CI", "true" if ci else "")
    pytester.makeconftest(HARNESS)
    pytester.makeini("[pytest]\ntestpaths = tests\naddopts = --import-mode=importlib")
    for layer, code in files.items():
        folder = pytester.path / "tests" / layer
        folder.mkdir(parents=True)
        (folder / "test_it.py").write_text(code)
    return pytester.runpytest_subprocess()


PASSING = "def test_it(): pass"
SKIPPED = "import pytest\n@pytest.mark.parametrize('n', (1, 2))\ndef test_it(n): pytest.skip('no server')"


def test_layers_run_in_order_and_are_counted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = "def test_it(): assert False\ndef test_other(): pass"
    result = run(pytester, monkeypatch, {"chaos": PASSING, "core": failing, "unit": PASSING})
    result.stdout.re_match_lines_random([r"unit +1 +0 +0 +\d\.\d  passed", r"core +1 +1 +0 +\d\.\d  FAILED"])
    result.stdout.re_match_lines([r"tests.unit.*", r"tests.core.*", r"tests.chaos.*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(("ci", "code"), [(False, pytest.ExitCode.OK), (True, pytest.ExitCode.TESTS_FAILED)])
def test_a_layer_that_could_not_run_is_named_and_fails_in_ci(
    ci: bool, code: pytest.ExitCode, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(pytester, monkeypatch, {"unit": PASSING, "core": SKIPPED}, ci=ci)
    result.stdout.re_match_lines([r"core +0 +0 +2 +\d\.\d  could not run: no server"])
    assert ("FAILED: CI=true, but in layer core 2 skipped" in result.outlines) == ci
    assert result.ret == code


def test_a_test_outside_of_the_layers_is_refused(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(pytester, monkeypatch, {"misc": PASSING})
    result.stderr.fnmatch_lines(["ERROR: tests/misc/test_it.py*: a test belongs in one of tests/*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


LEAKING = """
import subprocess, tempfile

def leave(script, *prefix):
    detached = ["sh", "-c", '"$@" &', "", *prefix, "sh", "-c", f"{script} & echo ready; wait"]
    with subprocess.Popen(detached, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\\n"

def test_orphan():
    leave("sleep 1001")

def test_stranger():
    leave(f"sleep 1002 & : {tempfile.gettempdir()}", "setsid", "env", "-i", "-C", "/")

def test_file():
    tempfile.mkstemp(prefix="forgotten-")
"""


def test_what_a_test_leaves_behind_fails_the_run_and_is_cleared_away(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(pytester, monkeypatch, {"unit": LEAKING})
    result.stdout.re_match_lines_random(
        [
            r"FAILED: process \d+: sh -c sleep 1001 .*",
            r"FAILED: process \d+: sh -c sleep 1002 .*",
            r"FAILED: file forgotten-.*",
        ]
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert result.parseoutcomes() == {"passed": 3}
