"""Programs from Debian's packages, unpacked into the cache folder: nothing is installed on the machine.

The control plane's etcd, the node's container runtime and the builder of the image come this way, for a normal user
too. apt verifies what it takes: signed lists of packages, and each package by its hash in them.
"""

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from support.cluster.errors import ClusterUnavailable

_VERIFIED = {
    "APT::Get::AllowUnauthenticated": "false",
    "Acquire::AllowInsecureRepositories": "false",
    "Acquire::AllowDowngradeToInsecureRepositories": "false",
}


def find_or_fetch(folder: Path, name: str, packages: Sequence[str], report: Callable[[str], None]) -> Path:
    """Return a root folder of the cache `folder` into which the packages are unpacked, fetched if need be.

    It is there with all of them or not at all; other packages, or another order, make another folder. The caller
    holds the cache's lock. Raises `ClusterUnavailable`, with the reason.
    """
    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    target = folder / f"debian-{name}-{key}"
    if target.is_dir():
        return target
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ClusterUnavailable(f"{name} comes from Debian's packages: there is no apt-get on this machine")
    report(f"fetching {name} from Debian's packages into {target}")
    with tempfile.TemporaryDirectory(prefix="new-", dir=folder) as scratch:
        root = Path(scratch) / "root"
        root.mkdir(mode=0o755)
        for package in _download(Path(scratch) / "packages", name, packages, report):
            _run(["dpkg-deb", "-x", str(package), str(root)], f"can not unpack {package.name}")
        root.rename(target)
    return target


def _download(folder: Path, name: str, packages: Sequence[str], report: Callable[[str], None]) -> list[Path]:
    """Download packages; with fresh lists of packages of our own if the machine's are missing or old."""
    folder.mkdir()
    apt = ["apt-get", *_options(_VERIFIED)]
    if _call([*apt, "download", *packages], folder).returncode != 0:
        report("  the machine's lists of packages do not do: fetching lists of our own (up to a minute)")
        apt += _own_lists(folder)
        _run([*apt, "update"], "can not fetch Debian's lists of packages", folder)
        _run([*apt, "download", *packages], f"can not fetch {name}", folder)
    return sorted(folder.glob("*.deb"))


def _own_lists(folder: Path) -> list[str]:
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    places = {"Dir::State::lists": folder / "lists", "Dir::Cache": folder / "cache"}
    return _options({**{key: str(place) for key, place in places.items()}, "APT::Sandbox::User": "root"})


def _options(settings: dict[str, str]) -> list[str]:
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def _run(command: Sequence[str], problem: str, folder: Path | None = None) -> None:
    done = _call(command, folder)
    if done.returncode != 0:
        raise ClusterUnavailable(f"{problem}: {done.stdout.strip().rpartition(chr(10))[2]}")


def _call(command: Sequence[str], folder: Path | None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
