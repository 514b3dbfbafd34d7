"""Runs the image's tools with Debian's packages laid over /usr, in namespaces of their own.

Neither the packages nor a mount of theirs is ever on the machine: the mounts are in a mount namespace that ends with
its processes, and the processes in a process namespace that ends with its first. `base` and `builder` use it.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.cluster.errors import ClusterUnavailable

_STEP = 5.0  # seconds between two lines for a person
_WIDTH = 90
# The packages' libraries lie where the loader looks anyway: buildah starts itself again without an environment.
_ENTER = 'mount -t overlay overlay -o "lowerdir=$1:/usr" /usr && shift && exec "$@"'


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The tools of a root folder of packages; scratch files and the log go into `scratch`."""

    root: Path
    scratch: Path
    report: Callable[[str], None]

    def run(self, command: Sequence[str], what: str, *, environment: Mapping[str, str] | None = None) -> str:
        """Run a command to its end, with a line every few seconds; return what it said.

        Raises `ClusterUnavailable` if it fails. Whatever ends this call ends the command and all that it started.
        """
        log = self.scratch / "log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                _isolated(self.root, command),
                env={**self._environment(), **(environment or {})},
                cwd=self.scratch,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone, and we end it
            )
            try:
                self._wait(process, what, log)
            finally:
                process.kill()
                process.wait()
        if process.returncode != 0:
            raise ClusterUnavailable(f"no image: {what} failed: {_reason(log)}")
        return log.read_text()

    def _wait(self, process: "subprocess.Popen[bytes]", what: str, log: Path) -> None:
        start = time.monotonic()
        while True:
            try:
                process.wait(timeout=_STEP)
            except subprocess.TimeoutExpired:
                self.report(f"  {what}: {time.monotonic() - start:.0f} s, {_last_line(log)}")
            else:
                return

    def _environment(self) -> dict[str, str]:
        """Return what the tools need; of the caller's environment only how the network is reached."""
        proxies = {
            key: value
            for key, value in os.environ.items()
            if key.lower() in {"http_proxy", "https_proxy", "no_proxy"}
        }
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.scratch),
            "TMPDIR": str(self.scratch),
            "LC_ALL": "C.UTF-8",
            **proxies,
        }


def require_rights() -> None:
    """Raise `ClusterUnavailable` unless this process may make images here."""
    if os.geteuid() != 0:
        raise ClusterUnavailable(
            "no image: without a container engine only root can make one (docker build . does it too)"
        )
    missing = [name for name in ("unshare", "setpriv") if shutil.which(name) is None]
    if missing:
        raise ClusterUnavailable(f"no image: there is no {missing[0]} (Debian's util-linux) on this machine")


def _isolated(root: Path, command: Sequence[str]) -> list[str]:
    # setpriv: unshare is killed when we are. --kill-child: then the first process ends, and with it all others.
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    enter = ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces]
    return [*enter, "sh", "-c", _ENTER, "sh", str(root / "usr"), *command]


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:_WIDTH] if lines else "no output yet"


def _reason(log: Path) -> str:
    """Return the lines that say why: those of the tools' own errors, else the last."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith(("error", "e: ", "mount: ", "* "))]
    return " / ".join((telling or lines or ["it said nothing"])[-2:])
