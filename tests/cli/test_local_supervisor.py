"""Promises of the supervisor about workers, with processes that are real and only short of work."""

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from docgrid_cli.local.events import EventKind, StackEvent, one_at_a_time
from docgrid_cli.local.keepers import Backoff
from docgrid_cli.local.maintenance import MaintenanceThread, WorkerLedger
from docgrid_cli.local.process import Launch
from docgrid_cli.local.supervisor import Supervisor
from docgrid_core.errors import DatabaseUnavailable
from docgrid_core.jobs import StopReason
from support.local_stack import EventLog, wait_until

DRAINS = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); time.sleep(600)"
IS_FENCED = "import sys; sys.exit(75)"


class Recorder:
    """A caretaker that notes what it is told, and refuses as often as the test says."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[tuple[str, str, float]] = queue.SimpleQueue()
        self.refusals = 0

    def worker_ended(self, pod_uid: str, reason: StopReason) -> None:
        """Note the end of a worker."""
        if self.refusals:
            self.refusals -= 1
            raise DatabaseUnavailable
        self.told.put((pod_uid, reason, time.monotonic()))

    def tick(self) -> None:
        """Note a tick."""
        self.told.put(("tick", "", time.monotonic()))

    def next_end(self) -> tuple[str, str, float]:
        """Return the next end of a worker; ticks before it are dropped."""
        while (told := self.told.get(timeout=10))[0] == "tick":
            pass
        return told


class Scene:
    """A supervisor of workers that run a line of Python."""

    def __init__(self, folder: Path, *, interval: float = 600) -> None:
        self.recorder, self.log = Recorder(), EventLog()
        self.ledger = WorkerLedger(folder / "workers.json")
        self.supervisor = Supervisor(ledger=self.ledger, report=self.log)
        self.supervisor.start_maintenance(self.recorder, interval=interval)
        self._folder = folder

    def start(self, program: str, *, count: int = 1) -> None:
        """Start the workers."""
        self.supervisor.start_workers(count, launch=self._launcher(program), grace=10)

    def _launcher(self, program: str) -> Callable[[str, str], Launch]:
        def launch(name: str, pod_uid: str) -> Launch:
            environment = {"PATH": os.defpath, "DOCGRID_WORKER_POD_UID": pod_uid}
            log = self._folder / f"{name}.log"
            return Launch([sys.executable, "-c", program], environment, folder=self._folder, log=log)

        return launch


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    built = Scene(tmp_path)
    yield built
    built.supervisor.stop()


def test_a_killed_worker_is_recorded_as_ended_at_once_and_replaced_by_a_new_one(scene: Scene) -> None:
    scene.start(DRAINS)
    scene.log.wait_for(EventKind.READY, "worker-1")
    (killed,) = scene.supervisor.workers()
    killed_at = time.monotonic()
    os.kill(killed.pid, signal.SIGKILL)
    pod_uid, reason, told_at = scene.recorder.next_end()
    assert (pod_uid, reason) == (killed.pod_uid, StopReason.ERROR)
    assert told_at - killed_at < 0.1
    # Its jobs are recovered by the tick that follows at once, not by the next one of the schedule.
    assert scene.recorder.told.get(timeout=1)[0] == "tick"
    scene.log.wait_for(EventKind.READY, "worker-1", count=2)
    (replacement,) = scene.supervisor.workers()
    assert replacement.pod_uid != killed.pod_uid


def test_a_fenced_worker_is_replaced_at_once_and_counts_as_stopped(scene: Scene) -> None:
    scene.start(IS_FENCED)
    ends = [scene.recorder.next_end() for _ in range(4)]
    assert {reason for _, reason, _ in ends} == {StopReason.STOPPED}
    assert len({pod_uid for pod_uid, _, _ in ends}) == 4


def test_a_stop_lets_workers_drain_and_records_their_end_before_maintenance_stops(scene: Scene) -> None:
    scene.start("import time; print('up', flush=True); " + DRAINS, count=3)
    for number in (1, 2, 3):
        scene.log.wait_for(EventKind.READY, f"worker-{number}")
    workers = scene.supervisor.workers()
    assert [worker.name for worker in workers] == ["worker-1", "worker-2", "worker-3"]
    scene.supervisor.stop()
    assert not any(psutil.pid_exists(worker.pid) for worker in workers)
    told = {scene.recorder.next_end()[0] for _ in workers}
    assert told == {worker.pod_uid for worker in workers}
    assert not scene.ledger.entries()
    assert not [event for event in scene.log.events if event.kind is EventKind.ENDED]


def test_a_stop_can_be_hurried(scene: Scene, tmp_path: Path) -> None:
    scene.start("""if True:
        import signal, sys, threading
        asked = threading.Semaphore(0)
        signal.signal(15, lambda *_: asked.release())
        print("up", flush=True)
        asked.acquire()
        print("drains", flush=True)
        asked.acquire()
    """)
    output = tmp_path / "worker-1.log"
    wait_until(lambda: output.exists() and "up" in output.read_text())
    stopping = threading.Thread(target=scene.supervisor.stop)
    stopping.start()
    wait_until(lambda: "drains" in output.read_text())
    scene.supervisor.hurry()
    stopping.join(5)
    assert not stopping.is_alive()


def test_an_end_is_kept_while_the_database_is_away_and_recorded_when_it_is_back(scene: Scene) -> None:
    scene.recorder.refusals = 2
    scene.start(DRAINS)
    scene.log.wait_for(EventKind.READY, "worker-1")
    (killed,) = scene.supervisor.workers()
    os.kill(killed.pid, signal.SIGKILL)
    assert scene.recorder.next_end()[0] == killed.pod_uid
    scene.log.wait_for(EventKind.READY, "database")
    assert len([event for event in scene.log.events if event.part == "database"]) == 2


def test_what_was_not_recorded_is_known_to_the_next_supervisor(tmp_path: Path) -> None:
    first = WorkerLedger(tmp_path / "workers.json")
    first.enter("a")
    first.enter("b")
    first.strike("a")
    assert WorkerLedger(tmp_path / "workers.json").entries() == ["b"]
    (tmp_path / "workers.json").write_text("{damaged")
    assert WorkerLedger(tmp_path / "workers.json").entries() == []


def test_a_terminal_that_is_gone_stops_nobody() -> None:
    def to_a_closed_terminal(_event: StackEvent) -> None:
        raise BrokenPipeError

    one_at_a_time(to_a_closed_terminal)(StackEvent(EventKind.READY, "worker-1", "worker-1 runs"))


def test_maintenance_runs_on_schedule(tmp_path: Path) -> None:
    recorder = Recorder()
    ledger = WorkerLedger(tmp_path / "workers.json")
    thread = MaintenanceThread(recorder, ledger=ledger, interval=0.01, report=EventLog())
    thread.start()
    ticks = [recorder.told.get(timeout=5) for _ in range(5)]
    thread.finish()
    assert {name for name, _, _ in ticks} == {"tick"}


def test_a_process_that_dies_young_again_and_again_is_restarted_ever_more_slowly() -> None:
    backoff = Backoff(young=10, first=0.5, longest=2)
    assert [backoff.after(1) for _ in range(5)] == [0, 0.5, 1, 2, 2]
    assert backoff.after(11) == 0
    assert [backoff.after(1) for _ in range(2)] == [0, 0.5]
