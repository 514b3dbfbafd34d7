"""One container of a pod as a real process of this machine: started, probed, ended, started again.

`pod_runner` drives it from the pod's own thread; only signals may come from others.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.process import ChildProcess, Launch
from support.cluster.api import Object
from support.cluster.pod_environment import ConfigError, Resolve, command_line
from support.cluster.pod_probes import Probe

_START_ERROR = 128
_CONFIG_RETRY = 0.5  # seconds; the kubelet looks every ten or so
_LONGEST_BACKOFF = 10.0
_LAST_WORDS = "DOCGRID_LOG_TERMINATION_FILE"
_HEALTH_HOSTS = ("DOCGRID_WORKER_HEALTH_HOST", "DOCGRID_OPERATOR_HEALTH_HOST")


@dataclass(frozen=True, slots=True)
class Place:
    """Where the containers of one pod run."""

    address: str
    folder: Path
    restart_policy: str
    mark: Mapping[str, str]
    """variables of every process, by which those of a killed run are found"""
    backoff: float
    """seconds before the second restart; the first comes at once, each later one after twice the time"""


class Container:
    """One container: its state is what the status of the pod says of it."""

    def __init__(self, spec: Object, place: Place, *, resolve: Resolve, wake: Callable[[], None]) -> None:
        """Take a container's spec; `wake` is called when its process has ended."""
        self.spec = spec
        self.name: str = spec["name"]
        self.log = place.folder / f"{self.name}.log"
        self._last_words = place.folder / f"{self.name}.end"
        self._place = place
        self._resolve = resolve
        self._wake = wake
        self._child: ChildProcess | None = None
        self._out_of_memory = False
        self._probes: dict[str, Probe] = {}
        self._due = 0.0
        self._started_at = ""
        self.restarts = 0
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: Object = {}

    @property
    def pid(self) -> int | None:
        """The id of its process while it runs."""
        child = self._child
        return child.identity.pid if child is not None and child.exit_code is None else None

    @property
    def is_started(self) -> bool:
        """Tell whether it runs and its startup probe, if it has one, has passed."""
        return "running" in self.state and ("startup" not in self._probes or self._probes["startup"].passes)

    @property
    def is_ready(self) -> bool:
        """Tell whether it is started and its readiness probe, if it has one, passes."""
        return self.is_started and ("readiness" not in self._probes or self._probes["readiness"].passes)

    @property
    def exit_code(self) -> int | None:
        """The exit code with which it ended for good, or ended last."""
        ended = self.state.get("terminated")
        return None if ended is None else int(ended["exitCode"])

    @property
    def is_over(self) -> bool:
        """Tell whether it has ended and the restart policy lets it rest."""
        return self.exit_code is not None and not self._restarts_after(self.exit_code)

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal."""
        if (pid := self.pid) is not None:
            os.kill(pid, number)

    def run_out_of_memory(self) -> None:
        """Kill the process as the kernel does when its memory is used up."""
        self._out_of_memory = True
        self.signal(signal.SIGKILL)

    def kill(self) -> None:
        """Kill its process with everything it started, and wait until it is reaped."""
        if self._child is not None:
            self._child.kill()

    def advance(self) -> float:
        """Do what is due; return the seconds until something may be due again."""
        if self.notice_end():
            return 0.0  # the end is told before anything else happens
        if self._child is None and not self.is_over:
            return self._start_if_due()
        return self._probe() if self.pid is not None else 60.0

    def notice_end(self) -> bool:
        """Take over the end of the process into the state; tell whether there was one."""
        child = self._child
        if child is None or child.exit_code is None:
            return False
        self._child = None
        code = child.exit_code if child.exit_code >= 0 else 128 - child.exit_code
        reason = "OOMKilled" if self._out_of_memory else "Error" if code else "Completed"
        self._out_of_memory = False
        words = self._last_words.read_text(errors="replace")
        self._end(code, reason, **({"message": words} if words else {}))
        return True

    def rest(self) -> None:
        """Wait for no further start, as the pod ends: an end that was told already is the last."""
        if "waiting" in self.state and self.last_state:
            self.state = self.last_state

    def _start_if_due(self) -> float:
        wait = self._due - time.monotonic()
        if self.exit_code is not None:  # that was told: now it waits
            self.last_state, self.state = self.state, {"waiting": {"reason": "CrashLoopBackOff"}}
        if wait > 0:
            return wait
        try:
            environment = self._resolve(self.spec)
        except ConfigError as error:
            self.state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}}
            return self._again(_CONFIG_RETRY)
        command = command_line(self.spec, environment)
        if not command:
            self.state = {"waiting": {"reason": "ImagePullBackOff", "message": "there are no images here"}}
            return self._again(60.0)
        self._start(command, environment)
        return 0.0

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.defpath])
        program = shutil.which(command[0], path=path) or command[0]
        own = {"PATH": path, "HOME": str(self._place.folder), "TMPDIR": str(self._place.folder)}
        address = dict.fromkeys(_HEALTH_HOSTS, self._place.address)
        self._last_words.write_bytes(b"")
        words = {_LAST_WORDS: str(self._last_words)}
        launch = Launch(
            command=[program, *command[1:]],
            environment={**own, **environment, **address, **words, **self._place.mark},
            folder=self._place.folder,
            log=self.log,
        )
        if self._started_at:
            self.restarts += 1
        self._started_at = timestamp()
        try:
            self._child = ChildProcess(launch, on_end=self._wake)
        except LocalStackError as error:
            self._end(_START_ERROR, "StartError", message=str(error))
            return
        self.state = {"running": {"startedAt": self._started_at}}
        self._probes = self._build_probes()

    def _end(self, code: int, reason: str, **more: str) -> None:
        self.state = {
            "terminated": {
                "exitCode": code,
                "reason": reason,
                "startedAt": self._started_at,
                "finishedAt": timestamp(),
                **more,
            }
        }
        self._probes = {}
        wait = self._place.backoff * 2.0 ** (self.restarts - 1) if self.restarts else 0.0
        self._due = time.monotonic() + min(wait, _LONGEST_BACKOFF)

    def _build_probes(self) -> dict[str, Probe]:
        ports = {port["name"]: port["containerPort"] for port in self.spec.get("ports", []) if "name" in port}
        return {
            kind: Probe(
                self.spec[f"{kind}Probe"],
                address=self._place.address,
                ports=ports,
                passes_at_first=kind == "liveness",
            )
            for kind in ("startup", "readiness", "liveness")
            if f"{kind}Probe" in self.spec
        }

    def _probe(self) -> float:
        """Ask the probes that are due; a container that fails the one of its start or life is ended."""
        started = self.is_started
        asked = [probe for kind, probe in self._probes.items() if (kind == "startup") != started]
        for probe in asked:
            probe.run_if_due()
        if any(probe.failed for kind, probe in self._probes.items() if kind != "readiness"):
            self.kill()  # the grace that a kubelet would give is left out: what hangs uses it up anyway
        if started != self.is_started:
            return 0.0
        return min((probe.wait() for probe in asked), default=60.0)

    def _again(self, seconds: float) -> float:
        self._due = time.monotonic() + seconds
        return seconds

    def _restarts_after(self, code: int) -> bool:
        policy = self._place.restart_policy
        return policy == "Always" or (policy == "OnFailure" and code != 0)


def timestamp() -> str:
    """Return the time as the apiserver writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
