"""Arguments and options that several commands share, and what was chosen before the command's name."""

import getpass
from dataclasses import dataclass
from typing import Annotated

import typer

from docgrid_cli.render import Format


@dataclass(frozen=True)
class Choices:
    """What the options before the command's name say."""

    output: Format
    debug: bool


def _resolve_output(ctx: typer.Context, value: Format) -> Format:
    """Return the format given here, else the one before the command's name."""
    source = ctx.get_parameter_source("output")
    if source is not None and source.name == "DEFAULT" and isinstance(ctx.obj, Choices):
        return ctx.obj.output
    return value


def _read_id(kind: str, text: str) -> int:
    number = text.removeprefix(f"{kind}/")
    if not (number.isascii() and number.isdigit() and len(number) < 19):  # a bigint
        raise typer.BadParameter(f"{text} is no id: write a number, or {kind}/number as `-o name` prints it")
    return int(number)


def document_id(text: str) -> int:
    """Return the id that `7` or `document/7` means."""
    return _read_id("document", text)


def job_id(text: str) -> int:
    """Return the id that `7` or `job/7` means."""
    return _read_id("job", text)


def worker_id(text: str) -> int:
    """Return the id that `7` or `worker/7` means."""
    return _read_id("worker", text)


def asked_by() -> str:
    """Return who runs this command, for the history of what is changed."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # an account without a name
        return "unknown"


Output = Annotated[
    Format, typer.Option("-o", "--output", callback=_resolve_output, help="How to print the result.")
]
"""`-o`, before or after the command's name; the command gets the format that holds."""

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the history of the job.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=500, help="Rows of one page.")]
PageNumber = Annotated[int, typer.Option("--page", min=0, help="Which page; the first is 0.")]
DocumentArgument = Annotated[int, typer.Argument(metavar="ID", parser=document_id)]
DocumentsArgument = Annotated[list[int], typer.Argument(metavar="ID…", parser=document_id)]
JobArgument = Annotated[int, typer.Argument(metavar="ID", parser=job_id)]
JobsArgument = Annotated[list[int] | None, typer.Argument(metavar="[ID…]", parser=job_id)]
DocumentOption = Annotated[
    int | None, typer.Option("--document", metavar="ID", parser=document_id, help="Only of this document.")
]
WorkerOption = Annotated[
    int | None, typer.Option("--worker", metavar="ID", parser=worker_id, help="Only of this worker.")
]
