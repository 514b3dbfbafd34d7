"""`docgrid prune`: deletes what is too old to keep, now."""

from dataclasses import asdict

from docgrid_cli.commands import new_command
from docgrid_cli.installation import find_installation
from docgrid_cli.options import Output
from docgrid_cli.render import Format, show_facts, show_value
from docgrid_core.settings import MaintenanceSettings
from docgrid_core.store import prune as store

app = new_command()


@app.command("prune")
def prune(output: Output = Format.TABLE) -> None:
    """Delete ended jobs, ended workers, vectors and passages that nothing needs any more.

    How long they are kept is set by DOCGRID_MAINTENANCE_KEEP_INDEXED, …_KEEP_FAILED and …_KEEP_WORKERS.
    """
    installation = find_installation()
    settings = installation.load(MaintenanceSettings)
    with installation.database(pool_size=1) as db:
        report = store.prune(db, settings)
    if output in {Format.JSON, Format.YAML}:
        show_value(report, output)
        return
    show_facts("deleted", {kind: str(count) for kind, count in asdict(report).items()})
