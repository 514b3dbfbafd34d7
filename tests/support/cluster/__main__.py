"""`make cluster-up` and `make cluster-down`: a control plane and nodes in the background, for a person.

`up` starts `serve` and returns when it is ready; `serve` lives until `down` ends it. All of it lies in a folder
beside the local stack's data and is new each time. Both take the number of real nodes; 0 is the stand-in one.
`prepare` makes the programs, and for nodes the images, for test runs, and starts nothing.
"""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from docgrid_cli.local import leftovers
from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.home import holder, locked, prepare
from docgrid_cli.local.process import kill_tree, last_line, wait_until_ended
from support.cluster import binaries, cgroups, trial
from support.cluster.binaries import Binaries
from support.cluster.control_plane import NODE, ControlPlane
from support.cluster.errors import ClusterUnavailable
from support.cluster.fixtures import CRDS, install_crds, prepare_nodes
from support.cluster.kubectl import Kubectl
from support.cluster.node_cluster import group_of
from support.cluster.places import Places
from support.cluster.stand_in_node import StandInNode
from support.layers import TESTS

_LIMIT = 60.0  # seconds in which a start or a stop is done
_LIMIT_WITH_NODES = 300.0  # images are loaded, and servers start in pods


def up(places: Places, nodes: int) -> None:
    """Start the cluster if it does not run, and say how to reach it; without real nodes, install the CRDs too."""
    start = time.monotonic()
    made = _prepare(nodes)
    if holder(places.folder) is None:
        _say(f"starting a control plane and {f'real nodes: {nodes}' if nodes else 'a stand-in node'}")
        _start(places, nodes)
        _say(f"ready after {time.monotonic() - start:.1f} s; the log is {places.log}")
    elif places.ready.read_text() != str(nodes):
        raise ClusterUnavailable(
            f"the cluster runs already, with NODES={places.ready.read_text()}: say make cluster-down first"
        )
    else:
        _say("the cluster runs already")
    if not nodes and CRDS.is_dir():
        install_crds(Kubectl(made.kubectl, places.kubeconfig))
        _say("the CRDs of this checkout are installed")
    _say("for kubectl and helm, say:")
    print(f"export KUBECONFIG={shlex.quote(str(places.kubeconfig))}")
    print(f"export PATH={shlex.quote(str(places.programs))}:$PATH")
    if nodes:
        print("\n".join(trial.hints(places.run)))


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
            cgroups.remove(group_of(places.run))  # of nodes
        shutil.rmtree(places.folder)
    _say("nothing of the cluster is left")


def serve(places: Places, nodes: int) -> None:
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
        mark = leftovers.marked(places.folder, leftovers.SERVER)
        with _real(made, places, nodes, mark) if nodes else _stand_in(made, places, mark):
            places.ready.write_text(str(nodes))
            stopped.wait()


@contextlib.contextmanager
def _stand_in(made: Binaries, places: Places, mark: Mapping[str, str]) -> Iterator[None]:
    plane = ControlPlane(made, places.run, mark=mark)
    plane.start()
    try:
        worker_mark = leftovers.marked(places.folder, leftovers.WORKER)
        with StandInNode(plane.api_of(NODE), places.run / "pods", mark=worker_mark):
            yield
    finally:
        plane.stop()


@contextlib.contextmanager
def _real(made: Binaries, places: Places, nodes: int, mark: Mapping[str, str]) -> Iterator[None]:
    trial.link_commands(places.programs)
    with trial.running(made, places.run, nodes=nodes, mark=mark, report=_say):
        yield


def main() -> int:
    """Do what the command line says; return the exit code."""
    command = sys.argv[1]
    places = Places.of_user()
    try:
        nodes = _count_nodes("".join(sys.argv[2:]))
        if command == "prepare":
            _prepare(nodes)
            return 0
        prepare(places.folder)
        if command == "up":
            up(places, nodes)
        elif command == "down":
            down(places)
        else:
            serve(places, nodes)
    except (ClusterUnavailable, LocalStackError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return 0


def _count_nodes(text: str) -> int:
    if text and not (text.isdecimal() and text.isascii()):
        raise ClusterUnavailable(f"NODES={text}: must be a number of nodes, such as 2")
    return int(text or 0)


def _prepare(nodes: int) -> Binaries:
    """Make what takes minutes, in sight of whoever waits."""
    made = binaries.prepare(_say)
    if nodes:
        prepare_nodes(_say)
    return made


def _start(places: Places, nodes: int) -> None:
    places.ready.unlink(missing_ok=True)  # a killed one's
    with places.log.open("w") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "support.cluster", "serve", str(nodes)],
            cwd=TESTS,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    give_up = time.monotonic() + (_LIMIT_WITH_NODES if nodes else _LIMIT)
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
