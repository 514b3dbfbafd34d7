"""`docgrid workers`: lists worker processes."""

from typing import Annotated

import typer

from docgrid_cli.commands import new_group
from docgrid_cli.installation import find_installation
from docgrid_cli.options import Output
from docgrid_cli.render import Column, Format, View, age, show_all, span
from docgrid_core.jobs import WORKER_LIVE
from docgrid_core.store import queries
from docgrid_core.store.queries import WorkerView

app = new_group("workers")


@app.command("list")
def list_workers(
    ended: Annotated[bool, typer.Option("--all", "-a", help="Show those that have ended, too.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """List workers as the database counts them: one without a heartbeat for too long is DEAD."""
    with find_installation().database(pool_size=1) as db:
        found = queries.list_workers(db)
    show_all([row for row in found if ended or row.effective_status in WORKER_LIVE], WORKERS, output)


def _where(row: WorkerView) -> str:
    pod = "/".join(part for part in (row.namespace, row.pod_name) if part)
    return f"{pod or row.host_name}{f' on {row.node_name}' if row.node_name else ''}"


WORKERS = View[WorkerView](
    columns=[
        Column("ID", lambda row: row.id, right=True),
        Column("NAME", lambda row: row.name),
        Column("STATUS", lambda row: row.effective_status),
        Column("JOBS", lambda row: f"{row.running_jobs}/{row.max_concurrency}", right=True),
        Column("CIRCUIT", lambda row: row.circuit),
        Column("HEARTBEAT", lambda row: span(row.since_heartbeat), right=True),
        Column("AGE", lambda row: age(row.started_at), right=True),
        Column("MODEL", lambda row: row.model),
        Column("WHERE", _where, wide=True),
        Column("ENDED", lambda row: row.stop_reason),
    ],
    name=lambda row: f"worker/{row.id}",
    empty="no worker is running: start some with `docgrid up`, or `docgrid-worker`",
)
