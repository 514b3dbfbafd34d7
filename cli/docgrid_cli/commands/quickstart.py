"""`docgrid quickstart`: shows it all on a local stack of its own, and leaves nothing behind."""

import os
import shutil

import typer

from docgrid_cli.commands import new_command
from docgrid_cli.narrator import Narrator, stopwatch
from docgrid_cli.quickstart.scratch import STACK, clear_killed_runs, make_folder
from docgrid_cli.quickstart.story import tell_story
from docgrid_cli.terminal import note, quiet_logs

app = new_command()


@app.command("quickstart")
def quickstart() -> None:
    """Index sample documents on a local stack, kill a worker in the middle of a job, search, and stop.

    Exits with 0 only if the killed job was recovered, everything else was indexed and nothing is left running.
    """
    quiet_logs()
    clear_killed_runs()
    # One job at a time: the model server is busy with two, and it is plain to see who runs what.
    os.environ["DOCGRID_WORKER_MAX_CONCURRENCY"] = "1"
    folder = make_folder()
    keep = True
    try:
        with Narrator(stopwatch()) as narrator:
            held = tell_story(folder / STACK, narrator)
            narrator.plain(_EPILOGUE if held else "")
        keep = not held
    except (KeyboardInterrupt, BrokenPipeError):
        keep = False
        raise
    finally:
        if keep:
            note(f"it did not hold: the logs are kept in {folder} until the next quickstart")
        else:
            shutil.rmtree(folder)
    if keep:
        raise typer.Exit(1)


_EPILOGUE = """
Everything held. `docgrid up` starts a stack that stays, for documents of your own."""
