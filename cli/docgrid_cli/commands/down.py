"""`docgrid down`: stops the local stack from another terminal, or cleans up after a killed one."""

from docgrid_cli.commands import new_command
from docgrid_cli.local.events import StackEvent
from docgrid_cli.local.home import home_folder
from docgrid_cli.local.stack import down
from docgrid_cli.terminal import note

app = new_command()


@app.command("down")
def down_command() -> None:
    """Stop the local stack, whoever runs it; its documents and vectors are kept for the next `up`."""
    was_running = down(home_folder(), report=_tell)
    print("the local stack is stopped, its data are kept" if was_running else "the local stack does not run")


def _tell(event: StackEvent) -> None:
    note(event.text)
