"""Run every check that needs no running server, all of them even if one fails. `make check` and CI call it.

A check is a command; its output is shown only if it fails. A generator under tools/ compares what it would
write with what is committed when it is called with `--check`: add it to `CHECKS`.
"""

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
TYPED = ("core", "pipeline", "worker", "operator", "cli", "tests", "tools", "bench")
EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@dataclass(frozen=True, slots=True)
class Check:
    """One command and what it looks after."""

    name: str
    command: tuple[str, ...]


def tool(name: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of a tool that is installed beside this Python."""
    return (str(BIN / name), *arguments)


CHECKS = (
    # Without its cache: whether an import is ours depends on other files than the one that it remembers.
    Check("lint (ruff)", tool("ruff", "check", "--no-cache", "--quiet", ".")),
    Check("format (ruff)", tool("ruff", "format", "--check", "--quiet", ".")),
    Check("types (mypy)", tool("mypy", *(folder for folder in TYPED if any((ROOT / folder).rglob("*.py"))))),
    Check("import contracts", tool("lint-imports")),
    # Against the empty tree: the whole of every tracked file, not only what changed since the last commit.
    Check("white space, conflict marks", ("git", "diff", "--check", EMPTY_TREE, "--", ".")),
    Check("lock file", tool("python", "tools/lock_dependencies.py", "--check")),
    Check("page of settings", tool("python", "tools/settings_page.py", "--check")),
    Check("custom resources", tool("python", "tools/generate_crds.py", "--check")),
    # helm is that of the tests' control plane.
    Check(
        "chart and install manifests",
        ("env", "PYTHONPATH=tests", *tool("python", "tools/generate_chart.py", "--check")),
    ),
    Check("links between documents", tool("python", "tools/check_links.py")),
)


def main() -> int:
    """Run the checks one after the other; return 1 if any failed."""
    failed = [check.name for check in CHECKS if not run(check)]
    if failed:
        print(f"{len(failed)} of {len(CHECKS)} checks failed: {', '.join(failed)}")
        return 1
    print(f"all {len(CHECKS)} checks passed")
    return 0


def run(check: Check) -> bool:
    """Run one check, print its line and, if it failed, all that it said."""
    print(f"  {check.name:<28}", end="", flush=True)
    start = time.monotonic()
    done = subprocess.run(
        check.command, check=False, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    outcome = "ok" if done.returncode == 0 else "FAILED"
    print(f"{outcome:<8}{time.monotonic() - start:5.1f} s", flush=True)
    if done.returncode != 0:
        print(done.stdout)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
