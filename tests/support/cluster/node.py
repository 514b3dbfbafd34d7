"""A real node: containerd, kubelet and kube-proxy in namespaces of their own, on the switch of a `Network`.

`NodeCluster` builds them. Whatever a node is (processes, mounts, addresses, rules) goes with its first process; its
control groups and its folder are removed by `stop`.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from support.cluster import cgroups
from support.cluster.errors import ClusterUnavailable
from support.cluster.network import Network
from support.cluster.node_settings import (
    SOCKET,
    NodePlan,
    build_containerd_config,
    build_kubelet_config,
    build_pod_network,
    kubelet_command,
    proxy_command,
)
from support.cluster.programs import NodePrograms
from support.layers import TESTS

_LIMIT = 60.0  # seconds in which containerd answers
PID = "pid"
"""File of a node's folder that holds the id of its first process, as this machine sees it."""
_PROGRAMS = ("containerd", "kubelet", "kube-proxy")
_HOG = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
taken = []
while True:
    taken.append(b"x" * 10_000_000)
"""
_NAMESPACES = (
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation",
    "private",
)


class Node:
    """One node; it may be stopped and started again, with what it has on its disk."""

    def __init__(self, plan: NodePlan, network: Network) -> None:
        self.plan = plan
        self.name = plan.name
        self._network = network
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and return when its container runtime answers; raises `ClusterUnavailable`."""
        self.plan.folder.mkdir(parents=True, exist_ok=True)
        cgroups.make(self.plan.cgroup)
        settings = self._write_settings()
        environment = {
            **self.plan.programs.environment,
            "HOME": str(self.plan.folder),
            "PYTHONPATH": str(TESTS),
        }
        with (self.plan.folder / "init.log").open("ab") as log:
            process = self._process = subprocess.Popen(
                [
                    "unshare",
                    *_NAMESPACES,
                    "--",
                    sys.executable,
                    "-m",
                    "support.cluster.node_init",
                    str(settings),
                ],
                cwd=TESTS,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != b"made\n":
            raise self._failure("no file system of its own")
        (self.plan.folder / PID).write_text(str(self.pid))
        self._network.plug_in(self.plan.number, self.pid)
        process.stdin.write(b"go\n")
        process.stdin.flush()
        self._wait_for_runtime(process)

    @property
    def pid(self) -> int:
        """The id of its first process; it has to run."""
        assert self._process is not None
        (init,) = psutil.Process(self._process.pid).children()
        return init.pid

    @property
    def is_whole(self) -> bool:
        """Tell whether all its programs run."""
        return self._process is not None and set(_PROGRAMS) <= {child.name() for child in self._children()}

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children()

    def load(self, archive: Path) -> None:
        """Load an image of an archive."""
        import_image(self.plan.programs, self.pid, archive)

    def ctr(self, *arguments: str) -> str:
        """Run a command of containerd's client; return what it says."""
        return _ctr(self.plan.programs, self.pid, *arguments)

    def pids_of(self, container: str) -> list[int]:
        """Return the ids, as this machine sees them, of the processes of a container; none if it has ended."""
        with contextlib.suppress(OSError):  # it ends at this moment
            return sorted(map(int, (self._group_of(container) / "cgroup.procs").read_text().split()))
        return []

    def signal(self, container: str, number: signal.Signals) -> None:
        """Send every process of a container a signal; raises `LookupError` if it has none."""
        pids = self.pids_of(container)
        if not pids:
            raise LookupError(f"no process of {container} on {self.name}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # the first one's end is that of the others
                os.kill(pid, number)

    def exhaust_memory(self, container: str) -> None:
        """Use up the memory of a container from within it, and let the kernel choose the container's own process.

        Returns when the kernel has ended both.
        """
        procs = self._group_of(container) / "cgroup.procs"
        for pid in self.pids_of(container):
            Path(f"/proc/{pid}/oom_score_adj").write_text("1000")
        subprocess.run(
            [sys.executable, "-c", _HOG, str(procs)], check=False, stdin=subprocess.DEVNULL, timeout=_LIMIT
        )

    def working_set_of(self, container: str) -> int:
        """Return the bytes of a container as the kubelet counts them: without files that can be dropped."""
        group = self._group_of(container)
        one_tree = (group / "memory.current").exists()
        used = group / ("memory.current" if one_tree else "memory.usage_in_bytes")
        counted = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(used.read_text()) - int(counted["inactive_file" if one_tree else "total_inactive_file"])

    def cpu_seconds_of(self, container: str) -> float:
        """Return the time of a core that a container has used."""
        group = self._group_of(container, "cpuacct")
        if (group / "cpuacct.usage").exists():
            return int((group / "cpuacct.usage").read_text()) / 1e9
        counted = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return int(counted["usage_usec"]) / 1e6

    def _group_of(self, container: str, controller: str = "memory") -> Path:
        """Return the group of a container in the tree of a controller; `container` may be a pod status's URL."""
        name = container.rpartition("/")[2]
        tree = cgroups.tree_of(controller) / self.plan.cgroup
        return next(iter(tree.glob(f"**/{name}")), tree / name)

    def kill_programs(self) -> None:
        """Kill kubelet, kube-proxy and containerd: nobody looks after the node's containers, which run on."""
        for process in self._children():
            if process.name() in _PROGRAMS:
                process.kill()

    def power_off(self) -> None:
        """End it as a power cut does: every process at once, no word to anybody; its disk stays."""
        process = self._process
        if process is not None:
            process.kill()
            process.communicate()
            cgroups.remove(self.plan.cgroup)
            self._process = None

    def stop(self) -> None:
        """End it and remove what it leaves on this machine."""
        self.power_off()
        shutil.rmtree(self.plan.folder, ignore_errors=True)

    def _write_settings(self) -> Path:
        plan, folder = self.plan, self.plan.folder
        (folder / "network").mkdir(exist_ok=True)
        _write(folder / "network" / "pods.conflist", build_pod_network(plan))
        (folder / "containerd.toml").write_text(build_containerd_config(plan))
        _write(folder / "kubelet.json", build_kubelet_config(plan))
        programs: Sequence[tuple[str, Sequence[str]]] = (
            ("containerd", [str(plan.programs.containerd), "--config", str(folder / "containerd.toml")]),
            ("kubelet", kubelet_command(plan, folder / "kubelet.json")),
            ("kube-proxy", proxy_command(plan)),
        )
        environment = {**plan.programs.environment, "HOME": str(folder)}
        told = {
            "folder": str(folder),
            "environment": environment,
            "programs": [{"name": name, "command": list(command)} for name, command in programs],
        }
        return _write(folder / "node.json", told)

    def _wait_for_runtime(self, process: "subprocess.Popen[bytes]") -> None:
        give_up = time.monotonic() + _LIMIT
        while True:
            if process.poll() is not None:
                raise self._failure("it ended at once")
            try:
                self.ctr("version")
            except ClusterUnavailable:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.1)
            else:
                return

    def _failure(self, problem: str) -> ClusterUnavailable:
        said = (self.plan.folder / "init.log").read_text().strip().rpartition("\n")[2]
        return ClusterUnavailable(f"node {self.name}: {problem}: {said}")


def import_image(programs: NodePrograms, pid: int, archive: Path) -> None:
    """Load an image of an archive into the node whose first process is `pid`."""
    _ctr(programs, pid, "images", "import", str(archive))


def _ctr(programs: NodePrograms, pid: int, *arguments: str) -> str:
    command = [str(programs.ctr), f"--address=/proc/{pid}/root{SOCKET}", "--namespace=k8s.io", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise ClusterUnavailable(f"no node: ctr {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _write(path: Path, content: Any) -> Path:
    path.touch(mode=0o600)
    path.write_text(json.dumps(content, indent=1))
    return path
