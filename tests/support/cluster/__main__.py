"""`make cluster-up` and `make cluster-down`: a control plane and a node in the background, for a person.

`up` starts `serve` and returns when it is ready; `serve` lives until `down` ends it. All of it lies in a folder
beside the local stack's data and is new each time. `prepare` makes the programs, for test runs, and starts nothing.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from docgrid_cli.local import leftovers
from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.home import holder, home_folder, locked, prepare
from docgrid_cli.local.process import kill_tree, last_line, wait_until_ended
from support.cluster import binaries
from support.cluster.control_plane import NODE, ControlPlane
from support.cluster.errors import ClusterUnavailable
from support.cluster.fixtures import CRDS, install_crds
from support.cluster.kubectl import Kubectl
from support.cluster.stand_in_node import StandInNode
from support.layers import TESTS

_LIMIT = 60.0  # seconds in which a start or a stop is done


class Places:
    """The files of the cluster of one user."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.programs = self.run / "bin"
        self.kubeconfig = self.run / "admin.kubeconfig"
        self.ready = self.run / "ready"
        self.log = folder / "cluster.log"


def up(places: Places) -> None:
    """Start the cluster if it does not run, bring its CRDs up to date, and say how to reach it."""
    start = time.monotonic()
    made = binaries.prepare(_say)
    if holder(places.folder) is None:
        _say("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and a node")
        _start(places)
        _say(f"ready after {time.monotonic() - start:.1f} s; the log is {places.log}")
    else:
        _say("the cluster runs already")
    if CRDS.is_dir():
        install_crds(Kubectl(made.kubectl, places.kubeconfig))
        _say("the CRDs of this checkout are installed")
    _say("for kubectl and helm, say:")
    print(f"export KUBECONFIG={shlex.quote(str(places.kubeconfig))}")
    print(f"export PATH={shlex.quote(str(places.programs))}:$PATH")


def down(places: Places) -> None:
    """End the cluster and everything on it; one that does not run is down."""
    running = holder(places.folder)
    process = running.find() if running is not None else None
    if process is not None:
        _say("stopping the cluster")
        process.terminate()
        if wait_until_ended([process], limit=_LIMIT):
            kill_tree(process.pid)
    if places.folder.exists():
        with locked(places.folder, patience=_LIMIT):
            leftovers.end(places.folder, limit=5)
        shutil.rmtree(places.folder)
    _say("nothing of the cluster is left")


def serve(places: Places) -> None:
    """Run the cluster until a signal ends it."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    with locked(places.folder, patience=5):
        # 1. What a killed one left.
        leftovers.end(places.folder, limit=5)
        shutil.rmtree(places.run, ignore_errors=True)
        places.programs.mkdir(parents=True)
        # 2. The parts, in the order in which they need each other.
        made = binaries.prepare(_say)
        for program in made.for_a_person:
            (places.programs / program.name).symlink_to(program)
        plane = ControlPlane(made, places.run, mark=leftovers.marked(places.folder, leftovers.SERVER))
        plane.start()
        try:
            mark = leftovers.marked(places.folder, leftovers.WORKER)
            with StandInNode(plane.api_of(NODE), places.run / "pods", mark=mark):
                places.ready.touch()
                stopped.wait()
        finally:
            plane.stop()


def main() -> int:
    """Do what the command line says; return the exit code."""
    commands: dict[str, Callable[[Places], None]] = {"up": up, "down": down, "serve": serve}
    places = Places(home_folder().with_name("docgrid-cluster"))
    try:
        if sys.argv[1] == "prepare":
            binaries.prepare(_say)
        else:
            prepare(places.folder)
            commands[sys.argv[1]](places)
    except (ClusterUnavailable, LocalStackError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def _start(places: Places) -> None:
    places.ready.unlink(missing_ok=True)  # a killed one's
    with places.log.open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "support.cluster", "serve"],
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    give_up = time.monotonic() + _LIMIT
    while not places.ready.exists():
        if child.poll() is not None or time.monotonic() > give_up:
            child.kill()
            raise ClusterUnavailable(
                f"the cluster does not start: {last_line(places.log)} (see {places.log})"
            )
        time.sleep(0.05)


def _say(line: str) -> None:
    print(f"# {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
