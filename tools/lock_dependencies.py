"""Write the lock files from pyproject.toml, or check that they agree with it.

`requirements.lock` is what a checkout installs. `requirements-image.lock` is the part of it that the image needs,
`requirements-build.lock` what builds our wheel there. `make lock` writes all three; pins are kept unless `--upgrade`
is given. `make check` runs it with `--check`, which needs no network: every dependency of pyproject.toml is pinned,
at a version that it allows, with hashes, the parts have the same pins, and no file names a package index. They serve
every Python from 3.11 on and every platform.
"""

import argparse
import re
import subprocess
import sys
import tomllib
import venv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PYPROJECT = ROOT / "pyproject.toml"
LOCK = ROOT / "requirements.lock"
IMAGE_LOCK = ROOT / "requirements-image.lock"
IMAGE_EXTRAS = ("operator", "cli")
BUILD_LOCK = ROOT / "requirements-build.lock"
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
    pyproject, lock = tomllib.loads(PYPROJECT.read_text()), LOCK.read_text()
    problems = find_problems(pyproject, lock)
    for part, wanted in _wanted_by_part(pyproject).items():
        problems += find_part_problems(wanted, lock, part.name, part.read_text())
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def write(*, upgrade: bool) -> None:
    """Resolve the dependencies of all extras and write the lock files."""
    if not COMPILER_ENVIRONMENT.exists():
        print(f"Installing {COMPILER}")
        venv.create(COMPILER_ENVIRONMENT, with_pip=True)
    python = str(COMPILER_ENVIRONMENT / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", COMPILER], check=True)
    _compile(python, LOCK, [PYPROJECT.name, "--extra", "dev", *(["--upgrade"] if upgrade else [])])
    extras = [word for extra in IMAGE_EXTRAS for word in ("--extra", extra)]
    _compile(python, IMAGE_LOCK, [PYPROJECT.name, *extras, "--constraint", LOCK.name])
    wanted = "\n".join(tomllib.loads(PYPROJECT.read_text())["build-system"]["requires"])
    _compile(python, BUILD_LOCK, ["-", "--constraint", LOCK.name], wanted)


def _compile(python: str, lock: Path, options: list[str], wanted: str = "") -> None:
    """Resolve what the options name; `-` is the text `wanted`."""
    command = [python, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
    command += ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url"]
    command += ["--output-file", lock.name, *options]
    subprocess.run(command, check=True, cwd=ROOT, input=wanted, text=True)
    print(f"{lock.name} holds {sum(1 for _ in read_pins(lock.read_text()))} pins")


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


def find_part_problems(wanted: Iterable[str], lock: str, name: str, part: str) -> list[str]:
    """Return one line for each way in which the lock file `name` is not the part of the lock that is wanted."""
    pins, found = set(read_pins(lock)), set(read_pins(part))
    problems = [
        f"{name} pins {pin.name}=={pin.version}, {LOCK.name} does not: run make lock"
        for pin in sorted(found - pins, key=lambda pin: pin.name)
    ]
    missing = {canonicalize_name(Requirement(each).name) for each in wanted} - {pin.name for pin in found}
    return problems + [f"{each} is not in {name}: run make lock" for each in sorted(missing)]


def _wanted_by_part(pyproject: Mapping[str, Any]) -> dict[Path, list[str]]:
    project = pyproject["project"]
    groups = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in IMAGE_EXTRAS)]
    image = [each for group in groups for each in group if Requirement(each).name != project["name"]]
    return {IMAGE_LOCK: image, BUILD_LOCK: pyproject["build-system"]["requires"]}


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
