"""`docgrid search`: embeds a question and shows the passages nearest to it."""

from typing import Annotated

import typer

from docgrid_cli.commands import new_command
from docgrid_cli.installation import Installation, find_installation
from docgrid_cli.options import Output
from docgrid_cli.render import Column, Format, View, show_all
from docgrid_core.store import models
from docgrid_core.store.search import MAX_TOP_K, SearchHit, search
from docgrid_pipeline.embeddings import Purpose

app = new_command()

SNIPPET = 160
"""Characters of a passage that a table shows."""


@app.command("search")
def search_command(
    question: Annotated[str, typer.Argument(help="What to look for, in any language the model knows.")],
    top_k: Annotated[
        int, typer.Option("-k", "--top-k", min=1, max=MAX_TOP_K, help="How many passages to show.")
    ] = 5,
    output: Output = Format.TABLE,
) -> None:
    """Find the passages nearest to a question, in the newest indexed version of every document."""
    if not question.strip():
        raise typer.BadParameter("the question is empty")
    show_all(ask(find_installation(), question, top_k=top_k), HITS, output)


def ask(installation: Installation, question: str, *, top_k: int) -> list[SearchHit]:
    """Return the passages nearest to a question; no connection is held while it is embedded."""
    with installation.database(pool_size=1) as db:
        model = models.active_model(db)
        with installation.provider(model) as provider:
            vector = provider.embed([question], purpose=Purpose.QUERY)[0]
        return search(db, model, vector.tolist(), top_k=top_k)


def _snippet(hit: SearchHit) -> str:
    text = " ".join(hit.chunk_text.split())
    return text if len(text) <= SNIPPET else f"{text[: SNIPPET - 1].rstrip()}…"


HITS = View[SearchHit](
    columns=[
        Column("#", lambda hit: hit.rank, right=True),
        Column("SCORE", lambda hit: f"{hit.score:.3f}", right=True),
        Column("TITLE", lambda hit: hit.title, wide=True),
        Column("SECTION", lambda hit: hit.section_title, wide=True),
        Column("PASSAGE", _snippet, wide=True),
    ],
    name=lambda hit: f"document/{hit.document_id}",
    empty="nothing found: no document is searchable yet (`docgrid documents list` shows how far they are)",
)
