"""`docgrid up`: runs the local stack in the foreground and tells in plain words what it does."""

import time
from contextlib import suppress
from typing import Annotated

import typer

from docgrid_cli.commands import new_command
from docgrid_cli.installation import Installation
from docgrid_cli.local.home import home_folder
from docgrid_cli.local.profile import Profile
from docgrid_cli.local.stack import LocalStack, running
from docgrid_cli.narrator import Narrator
from docgrid_cli.terminal import quiet_logs
from docgrid_core.errors import FaultError
from docgrid_core.store.queries import QueueDepth, queue_depth

app = new_command()

_INTERVAL = 2.0  # seconds between looks at the queue

_READY = """
DocGrid is up. In another terminal:
  docgrid ingest DIR          index what is in a folder
  docgrid jobs watch          see it happen
  docgrid search "…"          ask
  docgrid doctor              check everything
Press Ctrl-C here, or run `docgrid down`, to stop; the data are kept in {home}
"""


@app.command("up")
def up(
    workers: Annotated[
        int, typer.Option("--workers", "-w", min=0, max=64, help="Worker processes to keep running.")
    ] = 2,
) -> None:
    """Run PostgreSQL, an S3 server, an embedding model and workers until Ctrl-C or `docgrid down`."""
    quiet_logs()
    home = home_folder()
    with Narrator() as narrator:
        stack = LocalStack(home, workers=workers, report=narrator.tell_event)
        with suppress(KeyboardInterrupt), running(stack) as profile:
            narrator.plain(_READY.format(home=home))
            _show_status(stack, profile, narrator)
        narrator.tell("the local stack is stopped, its data are kept")


def _show_status(stack: LocalStack, profile: Profile, narrator: Narrator) -> None:
    """Keep one line about the queue up to date until this process is told to stop."""
    with Installation(profile.settings()).database(pool_size=1) as db:
        while True:
            with suppress(FaultError):  # what is wrong with the database is told by the stack
                queues = [_queue(queue) for queue in queue_depth(db)]
                narrator.status("   ".join([f"{len(stack.workers())} workers", *queues]))
            time.sleep(_INTERVAL)


def _queue(queue: QueueDepth) -> str:
    return (
        f"{queue.ready} ready, {queue.delayed} delayed, {queue.processing} processing, {queue.failed} failed,"
        f" {queue.indexed_per_minute:g} indexed a minute"
    )
