"""`docgrid maintain`: hosts maintenance in the foreground, where no other host does."""

import signal
from typing import Annotated

import typer

from docgrid_cli.commands import new_command
from docgrid_cli.installation import find_installation
from docgrid_cli.options import Output
from docgrid_cli.render import Format, show_facts, show_value
from docgrid_core.logconfig import configure_logging
from docgrid_core.maintenance import Maintenance, MaintenanceLoop, Retention, TickReport, Watch
from docgrid_core.settings import LogSettings, MaintenanceSettings, WorkerSettings

app = new_command()


@app.command("maintain")
def maintain(
    once: Annotated[bool, typer.Option("--once", help="Run one tick and say what it did.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Mark dead workers, recover their jobs, wake delayed jobs and prune, until SIGTERM or Ctrl-C.

    Any number may run: the database lets one work. One tick alone (--once) calls no worker dead: for that it must
    have watched for longer than a worker may be silent.
    """
    installation = find_installation()
    settings, worker = installation.load(MaintenanceSettings), installation.load(WorkerSettings)
    logs = installation.load(LogSettings)
    with installation.database() as db:
        watch = Watch(longest_gap=max(worker.heartbeat_interval, 2 * settings.interval))
        maintenance = Maintenance(db, settings, worker.retry_policy, watch)
        if once:
            _show(maintenance.run_once(), output)
            return
        configure_logging(logs)
        loop = MaintenanceLoop(
            maintenance,
            Retention(db, settings),
            interval=settings.interval,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: loop.stop())
        loop.run()


def _show(report: TickReport, output: Format) -> None:
    if output in {Format.JSON, Format.YAML}:
        show_value(report, output)
        return
    show_facts(
        "one tick of maintenance",
        {
            "workers found dead": str(len(report.ended)),
            "jobs released": str(report.recovered.released),
            "jobs retried": str(report.recovered.retried),
            "jobs failed": str(report.recovered.failed),
            "delayed jobs made ready": str(report.promoted),
        },
    )
