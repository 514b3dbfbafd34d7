"""The commands of `docgrid`: one module for each, imported when it is run.

Each module holds a typer app called `app`. A module reads options, calls core or pipeline, and hands what it got
to `render`.
"""

import typer

COMMANDS = {
    "quickstart": "Index samples, kill a worker in mid-job, search, stop.",
    "up": "Run PostgreSQL, S3, an embedding model and workers here.",
    "down": "Stop the local stack; its data are kept.",
    "ingest": "Register files, folders or S3 prefixes for indexing.",
    "search": "Find the passages nearest to a question.",
    "documents": "List, show and delete documents.",
    "jobs": "List, show, watch, retry and cancel indexing jobs.",
    "workers": "List workers.",
    "queue": "Show how much is waiting, and how fast it goes.",
    "models": "List, add, activate and drop embedding models.",
    "migrate": "Create or upgrade the schema of the database.",
    "maintain": "Recover the jobs of dead workers, until stopped.",
    "prune": "Delete what is too old to keep.",
    "doctor": "Check everything that DocGrid needs, say what to fix.",
}
"""Name and summary of every command, in the order of the help."""


def new_command() -> typer.Typer:
    """Return the app of a module with one command; its help is plain text, as everywhere."""
    return typer.Typer(rich_markup_mode=None, add_completion=False)


def new_group(name: str) -> typer.Typer:
    """Return the app of a module whose commands stand below a common name."""
    app = new_command()
    app.callback(no_args_is_help=True, help=COMMANDS[name])(_nothing)
    return app


def _nothing() -> None:
    """Do nothing before the command of a group."""
