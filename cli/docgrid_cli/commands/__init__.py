"""The commands of `docgrid`: one module for each, imported when it is run.

Each module holds a typer app called `app`. A module reads options, calls core or pipeline, and hands what it got
to `render`.
"""

COMMANDS = {
    "quickstart": "Show it all: index samples, kill a worker in mid-job, search; then stop.",
    "up": "Run the local stack: PostgreSQL, S3, an embedding model, workers.",
    "down": "Stop the local stack; its data are kept.",
    "ingest": "Register files, folders or S3 prefixes for indexing.",
    "search": "Find the passages nearest to a question.",
    "documents": "List, show and delete documents.",
    "jobs": "List, show, watch, retry and cancel indexing jobs.",
    "workers": "List workers.",
    "queue": "Show how much is waiting, for how long, and how fast it goes.",
    "models": "List, add, activate and drop embedding models.",
    "migrate": "Create or upgrade the schema of the database.",
    "maintain": "Recover jobs of dead workers and wake delayed ones, until stopped.",
    "prune": "Delete what is too old to keep.",
    "doctor": "Check everything that DocGrid needs, and say what to fix.",
}
"""Name and summary of every command, in the order of the help."""
