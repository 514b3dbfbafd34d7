"""How things come into the cache folder: one run at a time makes them, whole or not at all.

The modules that build and fetch programs and images share it.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from support.cluster.errors import ClusterUnavailable

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


@contextlib.contextmanager
def locked(folder: Path, what: str, report: Callable[[str], None]) -> Iterator[None]:
    """Let one process of this machine make things in `folder`; the others wait for it and find them made.

    Raises `ClusterUnavailable` if the folder can not be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / "lock").open("w")
    except OSError as error:
        raise ClusterUnavailable(
            f"can not write the cache folder {folder}: {error.strerror} (set DOCGRID_CACHE)"
        ) from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"another run is preparing {what}: waiting for it")
            fcntl.flock(stream, fcntl.LOCK_EX)
        for scratch in folder.glob("new-*"):  # a killed run's
            shutil.rmtree(scratch, ignore_errors=True)
        yield
