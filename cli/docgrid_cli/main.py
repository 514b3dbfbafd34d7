"""The entry point of `docgrid`, which is also `kubectl docgrid`: reads the arguments, runs one command.

A command's module is imported when the command is run, so that `docgrid --help` needs no database driver.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import PurePath
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from docgrid_cli.commands import COMMANDS
from docgrid_cli.errors import run_reporting
from docgrid_cli.options import Choices, Output
from docgrid_cli.render import Format
from docgrid_core.errors import SettingsError

DEBUG = "--debug"


class DeferredCommand(TyperCommand):
    """Stands for a command in the list of commands until it is run."""

    def __init__(self, name: str, *, summary: str) -> None:
        super().__init__(name, help=summary, rich_markup_mode=None)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Import the command, and let it read its own arguments."""
        return self._load().make_context(*args, **kwargs)

    def _load(self) -> Any:
        try:
            module = import_module(f"docgrid_cli.commands.{self.name}")
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"`docgrid {self.name}` needs the package {error.name}: install docgrid[local]"
            ) from None
        return typer.main.get_command(module.app)


class DeferredGroup(TyperGroup):
    """The commands of `docgrid`, in the order in which a person meets them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, summary in COMMANDS.items():
            self.add_command(DeferredCommand(name, summary=summary))


app = typer.Typer(
    name="docgrid",
    cls=DeferredGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"docgrid {version('docgrid')}")
        raise typer.Exit


@app.callback()
def docgrid(
    ctx: typer.Context,
    output: Output = Format.TABLE,
    debug: Annotated[
        bool, typer.Option(DEBUG, help="Say more about an error; may stand anywhere in the command.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Index documents for semantic search, reliably.

    Works against the database of DOCGRID_DATABASE_URL, or the local stack that `docgrid up` starts.
    """
    ctx.obj = Choices(output, debug)


def main() -> None:
    """Run the command of this process and exit with its code: 0 ok, 1 failed, 2 wrong use or settings."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are printed, none is raised."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # names of files may be no text at all
    debug, arguments = _take_debug(arguments)
    command = typer.main.get_command(app)

    def invoke() -> int:
        code = command.main([*debug, *arguments], prog_name=_program(), standalone_mode=False)
        return code if isinstance(code, int) else 0

    return run_reporting(invoke, debug=bool(debug))


def _take_debug(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part `--debug` from the rest, wherever it stands before a `--`: most often it is added at the end."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    rest = [argument for argument in arguments[:end] if argument != DEBUG]
    return [DEBUG] * (len(rest) < end), [*rest, *arguments[end:]]


def _program() -> str:
    name = PurePath(sys.argv[0]).name
    return "kubectl docgrid" if name == "kubectl-docgrid" else "docgrid"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONSAFEPATH", "1")
    main()
