"""`docgrid quickstart`: shows it all on a local stack of its own, and leaves nothing behind."""

import os
import shutil
import tempfile
from pathlib import Path

import typer

from docgrid_cli.commands import new_command
from docgrid_cli.narrator import Narrator, stopwatch
from docgrid_cli.quickstart.story import tell_story
from docgrid_cli.terminal import quiet_logs

app = new_command()


@app.command("quickstart")
def quickstart() -> None:
    """Index sample documents on a local stack, kill a worker in the middle of a job, search, and stop.

    Exits with 0 only if the killed job was recovered, everything else was indexed and nothing is left running.
    """
    quiet_logs()
    # One job at a time: the model server is busy with two, and it is plain to see who runs what.
    os.environ["DOCGRID_WORKER_MAX_CONCURRENCY"] = "1"
    folder = Path(tempfile.mkdtemp(prefix="docgrid-quickstart-"))
    folder.chmod(0o711)  # as root, PostgreSQL runs under another account and has to get through
    held = False
    try:
        with Narrator(stopwatch()) as narrator:
            held = tell_story(folder / "stack", narrator)
            if held:
                narrator.plain(
                    "\nEverything held. `docgrid up` starts a stack that stays: try your own documents."
                )
    finally:
        if held:
            shutil.rmtree(folder)
        else:
            print(f"the logs are kept in {folder}")
    if not held:
        raise typer.Exit(1)
