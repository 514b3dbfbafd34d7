"""`docgrid migrate`: brings the database to the schema of this release."""

from docgrid_cli.commands import new_command
from docgrid_cli.installation import find_installation
from docgrid_core.migrations import migrate
from docgrid_core.settings import DatabaseSettings

app = new_command()


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
