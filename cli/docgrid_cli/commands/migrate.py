"""`docgrid migrate`: brings the database to the schema of this release."""

import typer

from docgrid_cli.installation import find_installation
from docgrid_core.migrations import migrate
from docgrid_core.settings import DatabaseSettings

app = typer.Typer()


@app.command("migrate")
def migrate_command() -> None:
    """Create or upgrade the schema of the database; safe to run again, and from several places at once."""
    before, after = migrate(find_installation().load(DatabaseSettings))
    if before == after:
        print(f"the schema is at revision {after} already")
    elif before is None:
        print(f"the schema was created at revision {after}")
    else:
        print(f"the schema was upgraded from revision {before} to {after}")
