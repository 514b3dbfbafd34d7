"""`docgrid doctor`: checks everything that DocGrid needs, and says what to fix."""

from typing import Annotated

import typer

from docgrid_cli.checkup import Finding, Verdict, check_everything
from docgrid_cli.commands import new_command
from docgrid_cli.installation import find_installation
from docgrid_cli.options import Output
from docgrid_cli.render import Column, Format, View, show_all

app = new_command()


@app.command("doctor")
def doctor(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every table and check that all rows agree.")
    ] = False,
    document: Annotated[
        bool,
        typer.Option("--document", help="Have a document of its own indexed by a worker, found and deleted."),
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Check settings, database, schema, model, object store and embedding server; exit 1 if one needs a repair."""
    findings = list(check_everything(find_installation(), deep=deep, document=document))
    show_all(findings, FINDINGS, output)
    if any(finding.verdict is Verdict.FIX for finding in findings):
        raise typer.Exit(1)


FINDINGS = View[Finding](
    columns=[
        Column("PART", lambda row: row.part),
        Column("", lambda row: row.verdict),
        Column("FOUND", lambda row: row.text, wide=True),
    ],
    name=lambda row: row.part,
    empty="nothing to check",
)
