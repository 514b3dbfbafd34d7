"""`docgrid queue`: how much is waiting, for how long, and how fast it gets done."""

from docgrid_cli.commands import new_command
from docgrid_cli.installation import find_installation
from docgrid_cli.options import Output
from docgrid_cli.render import Column, Format, View, age, show_all
from docgrid_core.store import queries
from docgrid_core.store.queries import QueueDepth

app = new_command()


@app.command("queue")
def queue(output: Output = Format.TABLE) -> None:
    """Show the queue of each embedding model; the rate is that of the last five minutes."""
    with find_installation().database(pool_size=1) as db:
        found = queries.queue_depth(db)
    show_all(found, QUEUES, output)


QUEUES = View[QueueDepth](
    columns=[
        Column("MODEL", lambda row: row.model),
        Column("READY", lambda row: row.ready, right=True),
        Column("OLDEST", lambda row: age(row.oldest_ready_at), right=True),
        Column("DELAYED", lambda row: row.delayed, right=True),
        Column("PROCESSING", lambda row: row.processing, right=True),
        Column("FAILED", lambda row: row.failed, right=True),
        Column("INDEXED/MIN", lambda row: row.indexed_per_minute, right=True),
    ],
    name=lambda row: f"model/{row.model}",
    empty="no embedding model: add one with `docgrid models add`",
)
