"""The programs of Kubernetes, a control plane's and a node's, built once from the Go tool module beside this file.

`binaries` and `programs` call it. Nobody publishes these programs in a package registry, so they come as source, in
the version that `go.mod` pins, checked against `go.sum`.
"""

import os
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from support.cluster import cache
from support.cluster.errors import ClusterUnavailable

MODULE = Path(__file__).parent
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = ("kubelet", "kube-proxy")
INTERVAL = 5.0
"""Seconds between two lines of progress."""

_WANTED = re.compile(r"^\s*k8s\.io/kubernetes (v\d+\.\d+\.\d+)", re.MULTILINE)
_PROGRESS = re.compile(
    r"^[\w.\-/]+$"
)  # `go build -v` names each package, and says nothing else unless it fails


def version() -> str:
    """Return the version of Kubernetes that the module pins, such as v1.36.3."""
    found = _WANTED.search((MODULE / "go.mod").read_text())
    assert found is not None, "go.mod names no version of k8s.io/kubernetes"
    return found[1]


def find_or_build(
    names: Sequence[str], folder: Path, given: Iterable[Path], report: Callable[[str], None]
) -> Mapping[str, Path]:
    """Return programs of one of the folders `given` or of the cache `folder`; all are built there if one is missing."""
    target = folder / f"kubernetes-{version()}"
    found = cache.find(names, [*given, target])
    if found is not None:
        return found
    report(
        f"building Kubernetes {version()} once into {target}: 450 MB of sources, about 6 minutes on 2 cores"
    )
    with cache.filled(target) as scratch:
        _Build(scratch, report).run()
    return {name: target / name for name in names}


def command(target: Path) -> Sequence[str]:
    """Return the command that builds the programs into the folder `target`."""
    major, minor, _ = version().removeprefix("v").split(".")
    told = {
        "k8s.io/component-base/version.gitVersion": version(),
        "k8s.io/component-base/version.gitMajor": major,
        "k8s.io/component-base/version.gitMinor": minor,
    }
    flags = " ".join(f"-X {name}={value}" for name, value in told.items())
    packages = [f"k8s.io/kubernetes/cmd/{name}" for name in (*CONTROL_PLANE, *NODE)]
    return ["go", "build", "-v", "-trimpath", f"-ldflags=-s -w {flags}", "-o", f"{target}/", *packages]


class _Build:
    """One run of the Go tool: what it says is counted, and its last words are kept in case it fails."""

    def __init__(self, scratch: Path, report: Callable[[str], None]) -> None:
        self._scratch = scratch
        self._report = report
        self._downloads = 0
        self._packages = 0
        self._last: deque[str] = deque(maxlen=8)

    def run(self) -> None:
        try:
            child = subprocess.Popen(
                command(self._scratch),
                cwd=MODULE,
                env={
                    **os.environ,
                    "CGO_ENABLED": "0",
                    "GOFLAGS": "-mod=readonly",
                    "GOTMPDIR": str(self._scratch),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise ClusterUnavailable(_without_go()) from error
        with child:
            self._watch(child)
        if child.returncode != 0:
            raise ClusterUnavailable(f"Kubernetes {version()} does not build: {' | '.join(self._last)}")

    def _watch(self, child: "subprocess.Popen[str]") -> None:
        reader = threading.Thread(target=self._read, args=(child,), daemon=True)
        reader.start()
        start = time.monotonic()
        try:
            while reader.is_alive():
                reader.join(INTERVAL)
                done = f"{self._downloads} modules fetched, {self._packages} packages compiled"
                self._report(f"  {done}, {time.monotonic() - start:.0f} s")
        except BaseException:
            child.kill()
            raise

    def _read(self, child: "subprocess.Popen[str]") -> None:
        assert child.stderr is not None
        for line in map(str.strip, child.stderr):
            if line.startswith("go: downloading"):
                self._downloads += 1
            elif _PROGRESS.match(line):
                self._packages += 1
            else:
                self._last.append(line)


def _without_go() -> str:
    return (
        f"no control plane: KUBEBUILDER_ASSETS names no folder with {', '.join(CONTROL_PLANE)}, "
        "and there is no Go to build them with (install Go 1.26 or newer, or set KUBEBUILDER_ASSETS)"
    )
