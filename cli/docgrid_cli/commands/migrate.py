"""`docgrid migrate`: brings the database to the schema of this release."""

from docgrid_cli.commands import new_command
from docgrid_cli.installation import find_installation
from docgrid_core.errors import DocGridError
from docgrid_core.lastwords import leave_last_words
from docgrid_core.migrations import migrate
from docgrid_core.settings import DatabaseSettings

app = new_command()


@app.command("migrate")
def migrate_command() -> None:
    """Create or upgrade the schema of the database; safe to run again, and from several places at once."""
    try:
        before, after = migrate(find_installation().load(DatabaseSettings))
    except DocGridError as error:  # as an init container it ends with this; a person sees it in any case
        leave_last_words(str(error))
        raise
    if before == after:
        print(f"the schema is at revision {after} already")
    elif before is None:
        print(f"the schema was created at revision {after}")
    else:
        print(f"the schema was upgraded from revision {before} to {after}")
