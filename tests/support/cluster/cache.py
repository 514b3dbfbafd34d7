"""How a program comes into the cache folder: whole, or not at all.

The modules that build and fetch programs share it; the caller holds the cache's lock.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

EXECUTABLE = 0o755


def find(names: Iterable[str], folders: Iterable[Path]) -> Mapping[str, Path] | None:
    """Return the programs of the first folder that holds all of them."""
    wanted = list(names)
    for folder in folders:
        found = {name: folder / name for name in wanted}
        if all(path.is_file() and os.access(path, os.X_OK) for path in found.values()):
            return found
    return None


@contextlib.contextmanager
def filled(target: Path) -> Iterator[Path]:
    """Yield a scratch folder; when the block ends well, the files at its top are moved to the folder `target`."""
    with tempfile.TemporaryDirectory(prefix="new-", dir=target.parent) as folder:
        scratch = Path(folder)
        yield scratch
        target.mkdir(exist_ok=True)
        for path in scratch.iterdir():
            if path.is_file():
                path.chmod(EXECUTABLE)
                path.replace(target / path.name)
