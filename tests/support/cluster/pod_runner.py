"""One pod on the stand-in node: a thread that runs its containers and reports their state, as a kubelet does.

`StandInNode` starts one for each pod that is bound to it and passes on what happens to the pod's object. Init
containers and volumes are not run; a container's working folder and TMPDIR are the pod's own.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from support.cluster.api import STRATEGIC, Api, Object
from support.cluster.errors import ApiError
from support.cluster.pod_container import Container, Place
from support.cluster.pod_environment import PodEnvironment
from support.cluster.pod_status import build_status

_REPORT_RETRY = 0.5  # seconds


class Kubelet(Protocol):
    """What a pod asks of its node."""

    api: Api

    @property
    def is_away(self) -> bool:
        """Tell whether nothing at all happens on the node for now."""

    @property
    def is_silent(self) -> bool:
        """Tell whether no status is reported for now."""


class PodRunner:
    """One pod; the public methods may be called by any thread."""

    def __init__(self, node: Kubelet, pod: Object, *, place: Place) -> None:
        """Take a pod's object and where it runs; `start` begins."""
        self.uid: str = pod["metadata"]["uid"]
        self.address = place.address
        self._node = node
        self._pod = pod
        self._gone = False
        self._kill_at: float | None = None
        self._started_at: str | None = None
        self._told: Object = {}
        self._wake = threading.Event()
        resolve = PodEnvironment(node.api, pod, address=place.address).of
        self.containers = {
            spec["name"]: Container(spec, place, resolve=resolve, wake=self._wake.set)
            for spec in pod["spec"]["containers"]
        }
        self._thread = threading.Thread(target=self._run, name=f"pod {pod['metadata']['name']}", daemon=True)

    @property
    def path(self) -> str:
        """The path of the pod's object at the apiserver."""
        return pod_path(self._pod)

    def start(self, ended: Callable[["PodRunner"], None]) -> None:
        """Begin; `ended` is called when nothing of the pod is left."""
        self._ended = ended
        self._thread.start()

    def update(self, pod: Object) -> None:
        """Take a newer version of the object."""
        self._pod = pod
        self._wake.set()

    def vanish(self) -> None:
        """Note that the object is no more, and kill what runs."""
        self._gone = True
        self._wake.set()

    def look(self) -> None:
        """Look at once for what is to be done."""
        self._wake.set()

    def join(self) -> None:
        """Wait until nothing of the pod is left."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._gone:
                self._wake.clear()
                self._wake.wait(self._step())
        finally:
            self._kill()
            self._ended(self)

    def _step(self) -> float:
        """Do what is due; return the seconds until something may be due again."""
        if self._node.is_away:
            return 60.0
        try:
            wait = self._end() if "deletionTimestamp" in self._pod["metadata"] else self._advance()
            self._report()
        except ApiError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                self._gone = True
            return _REPORT_RETRY
        return wait

    def _advance(self) -> float:
        return min(container.advance() for container in self.containers.values())

    def _end(self) -> float:
        """End the containers in good time, then tell the apiserver that the pod may go."""
        if self._kill_at is None:
            grace = self._pod["metadata"].get("deletionGracePeriodSeconds", 30)
            self._kill_at = time.monotonic() + grace
            self._signal(signal.SIGTERM)
        left = self._kill_at - time.monotonic()
        if left <= 0:
            self._kill()
        for container in self.containers.values():
            container.notice_end()
            container.rest()
        if any(container.pid is not None for container in self.containers.values()):
            return max(left, 0.0)
        if self._node.is_silent:
            return 60.0
        self._report()
        self._node.api.delete(self.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}})
        self._gone = True
        return 0.0

    def _report(self) -> None:
        if self._node.is_silent or self._gone:
            return
        status = build_status(self._pod, list(self.containers.values()), self.address, self._told)
        if status != self._told:
            self._node.api.patch(
                f"{self.path}/status", {"metadata": {"uid": self.uid}, "status": status}, kind=STRATEGIC
            )
            self._told = status

    def _signal(self, number: signal.Signals) -> None:
        for container in self.containers.values():
            with contextlib.suppress(ProcessLookupError):
                container.signal(number)

    def _kill(self) -> None:
        for container in self.containers.values():
            container.kill()


def pod_path(pod: Object) -> str:
    """Return the path of a pod's object at the apiserver."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
