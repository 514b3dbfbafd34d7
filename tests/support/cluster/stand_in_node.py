"""A node of the control plane whose pods are real processes of this machine: a small kubelet in threads.

Tests start one where they need live workers. It registers, gives signs of life, runs each pod bound to it
(`pod_runner`) and, when told to, hurts them. One control plane can have several: its node controller evicts no pod
while all nodes are gone, so a test of a vanished node needs a second one.
"""

import contextlib
import random
import shutil
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from support.cluster.api import STRATEGIC, Api, Object, Watch
from support.cluster.errors import ApiError
from support.cluster.pod_container import Container, Place, timestamp
from support.cluster.pod_runner import PodRunner

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
_CAPACITY = {"cpu": "64", "memory": "256Gi", "pods": "250", "ephemeral-storage": "1Ti"}
_SIGN_OF_LIFE = 2.0  # seconds
_WATCH_LIMIT = 300
_RELIST = 0.2  # seconds after a watch that broke


class StandInNode:
    """One node; a context manager that ends with every pod on it."""

    def __init__(
        self,
        api: Api,
        folder: Path,
        *,
        name: str = "stand-in",
        mark: Mapping[str, str] | None = None,
        backoff: float = 1.0,
    ) -> None:
        """Take a client of its own and a folder for its pods.

        `mark` are variables for every process. `backoff` is the wait before a container's second restart (seconds),
        doubled each time.
        """
        self._mark = mark or {}
        self.api = api
        self.name = name
        self.is_away = False
        self.is_silent = False
        self._folder = folder
        self._backoff = backoff
        self._network = f"127.{random.randint(1, 254)}.{random.randint(0, 254)}"
        self._free = set(range(1, 255))
        self._runners: dict[str, PodRunner] = {}
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._watch: Watch | None = None
        self._threads = [
            threading.Thread(target=target, name=f"{name} {target.__name__}", daemon=True)
            for target in (self._follow_pods, self._give_signs_of_life)
        ]

    def start(self) -> None:
        """Register and begin to run pods."""
        self._register()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Kill every pod, take pods and node out of the cluster, and end."""
        self._stopping.set()
        with contextlib.suppress(ApiError):
            self.api.delete(f"/api/v1/nodes/{self.name}")
        self._stop_watch()
        for thread in self._threads:
            thread.join()
        for runner in self._all_runners():
            runner.vanish()
            runner.join()
            with contextlib.suppress(ApiError):
                self.api.delete(runner.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": runner.uid}})
        with contextlib.suppress(ApiError):
            self.api.delete(f"{_LEASES}/{self.name}")
        self.api.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def pid_of(self, pod: str, namespace: str, *, container: str | None = None) -> int:
        """Return the id of the process of a running container; raises `LookupError` if there is none."""
        pid = self._container(pod, namespace, container).pid
        if pid is None:
            raise LookupError(f"pod {pod} runs no process")
        return pid

    def log_of(self, pod: str, namespace: str, *, container: str | None = None) -> str:
        """Return everything that the runs of a container have written."""
        log = self._container(pod, namespace, container).log
        return log.read_text() if log.exists() else ""

    def kill(self, pod: str, namespace: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send the process of a pod's first container a signal, out of the blue."""
        self._container(pod, namespace, None).signal(number)

    def report_oom(self, pod: str, namespace: str) -> None:
        """Kill a pod's first container as the kernel does when its memory is used up."""
        self._container(pod, namespace, None).run_out_of_memory()

    def freeze_reports(self) -> None:
        """Run pods as before, but report nothing of them; the node itself stays ready."""
        self.is_silent = True

    def resume_reports(self) -> None:
        """Report again, what changed meanwhile at once."""
        self.is_silent = False
        self._look()

    def vanish(self, *, kill: bool) -> None:
        """Let the node fall silent: no sign of life, no report, no start and no end of a pod.

        `kill` says whether the processes die too, as in a power cut, or run on, as behind a broken network.
        """
        self.is_away = True
        self._stop_watch()
        if kill:
            for runner in self._all_runners():
                for container in runner.containers.values():
                    container.kill()

    def come_back(self) -> None:
        """Let a vanished node go on; pods that were deleted meanwhile are killed."""
        self.is_away = False
        self._look()

    def _container(self, pod: str, namespace: str, name: str | None) -> Container:
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        runner = next((runner for runner in self._all_runners() if runner.path == path), None)
        if runner is None:
            raise LookupError(f"no pod {pod} of namespace {namespace} is on {self.name}")
        return runner.containers[name or next(iter(runner.containers))]

    def _all_runners(self) -> list[PodRunner]:
        with self._changed:
            return list(self._runners.values())

    def _look(self) -> None:
        for runner in self._all_runners():
            runner.look()

    def _stop_watch(self) -> None:
        watch = self._watch
        if watch is not None:
            watch.stop()

    # What the two threads do.

    def _follow_pods(self) -> None:
        while not self._stopping.is_set():
            if not self.is_away:
                with contextlib.suppress(ApiError):
                    self._follow(self._list())
            self._stopping.wait(_RELIST)

    def _list(self) -> str:
        """Take over what there is now; return its version."""
        found = self.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self.name}")
        pods = {pod["metadata"]["uid"]: pod for pod in found["items"]}
        for runner in self._all_runners():
            if runner.uid not in pods:
                runner.vanish()
        for pod in pods.values():
            self._take(pod)
        return str(found["metadata"]["resourceVersion"])

    def _follow(self, version: str) -> None:
        selector = f"spec.nodeName={self.name}"
        watch = self.api.watch(
            "/api/v1/pods", seconds=_WATCH_LIMIT, resource_version=version, fieldSelector=selector
        )
        self._watch = watch
        if self._stopping.is_set() or self.is_away:  # said while there was no watch to stop
            watch.stop()
        for kind, pod in watch:
            if kind == "ERROR":
                return
            if kind == "DELETED":
                self._drop(pod["metadata"]["uid"])
            elif kind != "BOOKMARK":
                self._take(pod)

    def _take(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        with self._changed:
            runner = self._runners.get(uid)
            if runner is None:
                if self._stopping.is_set() or pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}:
                    return
                runner = self._runners[uid] = self._build(pod)
                runner.start(self._forget)
        runner.update(pod)

    def _drop(self, uid: str) -> None:
        with self._changed:
            runner = self._runners.get(uid)
        if runner is not None:
            runner.vanish()

    def _build(self, pod: Object) -> PodRunner:
        folder = self._folder / pod["metadata"]["uid"]
        folder.mkdir(parents=True)
        place = Place(
            address=f"{self._network}.{self._free.pop()}",
            folder=folder,
            restart_policy=pod["spec"]["restartPolicy"],
            mark=self._mark,
            backoff=self._backoff,
        )
        return PodRunner(self, pod, place=place)

    def _forget(self, runner: PodRunner) -> None:
        with self._changed:
            self._runners.pop(runner.uid, None)
            self._free.add(int(runner.address.rpartition(".")[2]))
        shutil.rmtree(self._folder / runner.uid, ignore_errors=True)

    def _register(self) -> None:
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux"}
        self.api.create("/api/v1/nodes", {"metadata": {"name": self.name, "labels": labels}})
        lease = {"holderIdentity": self.name, "leaseDurationSeconds": 40}
        self.api.create(_LEASES, {"metadata": {"name": self.name}, "spec": lease})
        self._give_sign_of_life()

    def _give_signs_of_life(self) -> None:
        while not self._stopping.wait(_SIGN_OF_LIFE):
            if not self.is_away:
                with contextlib.suppress(ApiError):
                    self._give_sign_of_life()

    def _give_sign_of_life(self) -> None:
        now = timestamp()
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now}
        status = {
            "capacity": _CAPACITY,
            "allocatable": _CAPACITY,
            "conditions": [condition],
            "nodeInfo": {"kubeletVersion": "stand-in", "operatingSystem": "linux"},
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        }
        self.api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status}, kind=STRATEGIC)
        renewed = {"spec": {"renewTime": now.replace("Z", ".000000Z")}}
        self.api.patch(f"{_LEASES}/{self.name}", renewed)
