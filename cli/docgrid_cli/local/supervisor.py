"""The supervisor of the local stack: the keepers of its servers and workers, and maintenance.

It only starts, keeps and stops processes, in the order that its host (`stack`) chooses.
"""

from collections.abc import Callable

from docgrid_cli.local.events import EventKind, Reporter, StackEvent
from docgrid_cli.local.keepers import RunningWorker, ServerKeeper, WorkerKeeper
from docgrid_cli.local.maintenance import Caretaker, MaintenanceThread, WorkerLedger
from docgrid_cli.local.process import Launch
from docgrid_cli.local.server import Server
from docgrid_core.jobs import StopReason


class Supervisor:
    """Keeps processes alive from their start until `stop`, each by a thread of its own."""

    def __init__(self, *, ledger: WorkerLedger, report: Reporter) -> None:
        """Prepare nothing yet; `report` is called from every thread and must not raise."""
        self._ledger = ledger
        self._report = report
        self._servers: list[ServerKeeper] = []
        self._workers: list[WorkerKeeper] = []
        self._maintenance: MaintenanceThread | None = None

    def start_server(self, server: Server) -> ServerKeeper:
        """Start a server in the background and keep it; the result can be waited for."""
        keeper = ServerKeeper(server, self._report)
        self._servers.append(keeper)
        keeper.start()
        return keeper

    def start_maintenance(self, caretaker: Caretaker, *, interval: float) -> None:
        """Run maintenance now, every `interval` seconds, and whenever a worker has ended."""
        self._maintenance = MaintenanceThread(
            caretaker, ledger=self._ledger, interval=interval, report=self._report
        )
        self._maintenance.start()

    def worker_ended(self, pod_uid: str, reason: StopReason) -> None:
        """Have maintenance told that a worker's process has ended."""
        if self._maintenance is not None:
            self._maintenance.worker_ended(pod_uid, reason)

    def start_workers(self, count: int, *, launch: Callable[[str, str], Launch], grace: float) -> None:
        """Start `worker-1` to `worker-<count>` and keep them.

        `launch` gets name and pod uid. At a stop each has `grace` seconds to finish its jobs.
        """

        def entered(name: str, pod_uid: str) -> Launch:
            self._ledger.enter(pod_uid)
            return launch(name, pod_uid)

        for number in range(1, count + 1):
            keeper = WorkerKeeper(
                f"worker-{number}", launch=entered, ended=self.worker_ended, report=self._report, grace=grace
            )
            self._workers.append(keeper)
            keeper.start()

    def workers(self) -> list[RunningWorker]:
        """Return the worker processes that run at this moment."""
        return [worker for keeper in self._workers if (worker := keeper.current) is not None]

    def hurry(self) -> None:
        """Have workers that are stopping give back the jobs that they are still working on."""
        for keeper in self._workers:
            keeper.hurry()

    def stop(self) -> None:
        """Stop everything: workers, maintenance, then the servers, the one started first at the end.

        Workers finish or give back their jobs, for which they need the servers.
        """
        self._stop_keepers(self._workers, "the workers finish or give back their jobs")
        if self._maintenance is not None:
            self._maintenance.finish()
        self._stop_keepers(self._servers[1:], "the servers stop")
        self._stop_keepers(self._servers[:1], "the database stops")

    def _stop_keepers(self, keepers: list[ServerKeeper] | list[WorkerKeeper], what: str) -> None:
        if keepers:
            self._report(StackEvent(EventKind.STOPPING, "stack", what))
        for keeper in keepers:
            keeper.ask_to_stop()
        for keeper in keepers:
            keeper.join()
