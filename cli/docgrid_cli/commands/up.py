"""`docgrid up`: runs the local stack in the foreground and tells in plain words what it does."""

import threading
from contextlib import suppress
from datetime import datetime
from typing import Annotated

import typer

from docgrid_cli.local.events import StackEvent
from docgrid_cli.local.home import home_folder
from docgrid_cli.local.stack import LocalStack, running

app = typer.Typer()

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
    home = home_folder()
    with suppress(KeyboardInterrupt), running(LocalStack(home, workers=workers, report=_tell)):
        print(_READY.format(home=home), flush=True)
        threading.Event().wait()
    print("the local stack is stopped, its data are kept", flush=True)


def _tell(event: StackEvent) -> None:
    print(f"{datetime.now():%H:%M:%S}  {event.text}", flush=True)  # noqa: DTZ005 - the clock on the wall
