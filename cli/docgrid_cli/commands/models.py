"""`docgrid models`: lists, adds, activates and drops embedding models."""

import json
from typing import Annotated, Any

import typer

from docgrid_cli.installation import find_installation
from docgrid_cli.options import Output, Yes
from docgrid_cli.render import Column, Format, View, show_all
from docgrid_cli.terminal import confirm
from docgrid_core.records import EmbeddingModel
from docgrid_core.store import models

app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="List, add, activate and drop embedding models."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The model's name, as its server knows it.")]
Version = Annotated[str, typer.Option("--version", help="Tells models of the same name apart.")]


@app.command("list")
def list_models(output: Output = Format.TABLE) -> None:
    """List the embedding models, oldest first."""
    with find_installation().database(pool_size=1) as db:
        found = models.list_models(db)
    show_all(found, MODELS, output)


@app.command("add")
def add_model(
    name: Name,
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="Numbers in a vector, 1 to 4000.")],
    provider: Annotated[str, typer.Option("--provider", help="openai or builtin.")] = "openai",
    version: Version = "",
    config: Annotated[
        str,
        typer.Option(
            "--config",
            help='JSON: how the provider is asked, e.g. {"input_type": true} or {"query_prefix": "query: "}.',
        ),
    ] = "{}",
    output: Output = Format.TABLE,
) -> None:
    """Add a model and make room for its vectors; it is not active before `docgrid models activate`."""
    with find_installation().database(pool_size=1) as db:
        model = models.add(
            db,
            provider=provider,
            name=name,
            version=version,
            dimension=dimension,
            config=_read_config(config),
        )
    show_all([model], MODELS, output)


@app.command("activate")
def activate_model(name: Name, version: Version = "", output: Output = Format.TABLE) -> None:
    """Make a model the one that documents are indexed and searched with."""
    with find_installation().database(pool_size=1) as db:
        model = models.activate(db, name, version)
    show_all([model], MODELS, output)


@app.command("drop")
def drop_model(name: Name, version: Version = "", yes: Yes = False) -> None:
    """Remove a model that is not active, with all its vectors."""
    with find_installation().database(pool_size=1) as db:
        models.find_model(db, name, version)
        confirm(f"Drop model {name} and all its vectors?", yes=yes)
        models.drop(db, name, version)
    print(f"model {name} dropped")


def _read_config(text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise typer.BadParameter(f"--config {text} is no JSON object")
    return config


def _state(row: EmbeddingModel) -> str:
    if row.is_active and row.is_searchable:
        return "ACTIVE"
    return "-"


MODELS = View[EmbeddingModel](
    columns=[
        Column("ID", lambda row: row.id, right=True),
        Column("NAME", lambda row: row.name),
        Column("VERSION", lambda row: row.version),
        Column("PROVIDER", lambda row: row.provider),
        Column("DIMENSION", lambda row: row.dimension, right=True),
        Column("STATE", _state),
        Column("CONFIG", lambda row: json.dumps(dict(row.config)), wide=True),
    ],
    name=lambda row: f"model/{row.name}",
    empty="no embedding model: add one with `docgrid models add`",
)
