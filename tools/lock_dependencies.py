"""Write requirements.lock from pyproject.toml, or check that the two agree.

`make lock` writes it; pins are kept unless `--upgrade` is given. `make check` runs it with `--check`, which
needs no network: every dependency of pyproject.toml is pinned, at a version that it allows, with hashes, and
the file names no package index. One lock serves every Python from 3.11 on and every platform.
"""

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PYPROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
COMPILER = "uv==0.13.9"
COMPILER_ENVIRONMENT = ROOT / ".cache" / "lock"

_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)")
_PLACE = re.compile(r"://|^-|\s@\s")


@dataclass(frozen=True, slots=True)
class Pin:
    """One entry of the lock file; a package has several where versions differ by platform or Python."""

    name: str
    version: Version
    hashes: int


def main() -> int:
    """Write the lock file or, with --check, say what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if the lock file is not right"
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that are allowed")
    options = parser.parse_args()
    if not options.check:
        write(upgrade=options.upgrade)
    problems = find_problems(tomllib.loads(PYPROJECT.read_text()), LOCK.read_text())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def write(*, upgrade: bool) -> None:
    """Resolve the dependencies of all extras and write the lock file."""
    if not COMPILER_ENVIRONMENT.exists():
        print(f"Installing {COMPILER}")
        venv.create(COMPILER_ENVIRONMENT, with_pip=True)
    python = str(COMPILER_ENVIRONMENT / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", COMPILER], check=True)
    command = [python, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--extra", "dev", "--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
    command += ["--output-file", LOCK.name, *(["--upgrade"] if upgrade else []), PYPROJECT.name]
    subprocess.run(command, check=True, cwd=ROOT)
    print(f"{LOCK.name} holds {sum(1 for _ in read_pins(LOCK.read_text()))} pins")


def find_problems(pyproject: Mapping[str, Any], lock: str) -> list[str]:
    """Return one line for each way in which the lock does not fulfil pyproject.toml."""
    pins: dict[str, list[Pin]] = defaultdict(list)
    for pin in read_pins(lock):
        pins[pin.name].append(pin)
    problems = [f"{LOCK.name} names a place: {line}" for line in lock.splitlines() if _PLACE.search(line)]
    problems += [
        f"{LOCK.name}: {name} has no hash" for name, found in pins.items() if not all(p.hashes for p in found)
    ]
    for requirement in read_requirements(pyproject):
        found = pins.get(canonicalize_name(requirement.name), [])
        if not found:
            problems.append(f"{requirement} is not in {LOCK.name}: run make lock")
        problems += [
            f"{LOCK.name} pins {pin.name}=={pin.version}, pyproject.toml wants {requirement}: run make lock"
            for pin in found
            if not requirement.specifier.contains(pin.version, prereleases=True)
        ]
    return problems


def read_requirements(pyproject: Mapping[str, Any]) -> Iterator[Requirement]:
    """Yield what pyproject.toml asks for: to build, to run, and in every extra."""
    project = pyproject["project"]
    groups = [pyproject["build-system"]["requires"], project["dependencies"]]
    groups += project["optional-dependencies"].values()
    for group in groups:
        yield from (r for r in map(Requirement, group) if r.name != project["name"])


def read_pins(lock: str) -> Iterator[Pin]:
    """Yield the pins of a lock file; an entry's hashes stand on the lines that its backslashes continue."""
    for entry in lock.replace("\\\n", " ").splitlines():
        if match := _PIN.match(entry):
            name = canonicalize_name(match["name"])
            yield Pin(name=name, version=Version(match["version"]), hashes=entry.count("--hash=sha256:"))


if __name__ == "__main__":
    sys.exit(main())
