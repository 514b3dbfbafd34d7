"""Standard output and error as a person, a pipe or a log sees them.

Colours, bars and tables that fit the window are for terminals only; everything else gets plain lines of any
length. Whatever comes from outside passes `printable` first.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

import typer

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 100_000
"""Columns of what is no terminal: `grep` and a log want whole lines."""


def console(stream: TextIO | None = None) -> "Console":
    """Return a console that writes to `stream`, by default standard output."""
    from rich.console import Console

    class OpenConsole(Console):
        def on_broken_pipe(self) -> None:
            # Rich ends the thread that printed: here the command decides what it means that nobody reads.
            raise BrokenPipeError

    stream = stream or sys.stdout
    interactive = stream.isatty()
    return OpenConsole(
        file=stream,
        force_terminal=interactive,
        width=None if interactive else _UNLIMITED,
        markup=False,
        highlight=False,
        emoji=False,
        soft_wrap=not interactive,
    )


def is_interactive() -> bool:
    """Tell whether a person sits in front of this command and can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def printable(text: str) -> str:
    """Return `text` on one line without control characters, which could steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def quiet_logs() -> None:
    """Let only warnings of the libraries below reach a person, on standard error: the result stays clean."""
    from docgrid_core.logconfig import configure_logging
    from docgrid_core.settings import LogSettings, load

    configure_logging(load(LogSettings, level="WARNING", format="console"), stream=sys.stderr)


def note(text: str) -> None:
    """Tell the person something that is no part of the result."""
    print(printable(text), file=sys.stderr)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that can not be undone; ends the command unless the answer is yes.

    Without a terminal nobody can answer: then only `--yes` (`yes`) lets it happen.
    """
    if yes:
        return
    if not is_interactive():
        raise typer.BadParameter(f"{question} Nobody can answer here: add --yes")
    if not typer.confirm(question, err=True):
        note("nothing was changed")
        raise typer.Exit(1)


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal while the `with` block works; the block calls the result after each step."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
