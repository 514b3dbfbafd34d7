"""`docgrid documents`: lists, shows and deletes documents."""

import typer

from docgrid_cli.commands import new_group
from docgrid_cli.installation import find_installation
from docgrid_cli.options import (
    DocumentArgument,
    DocumentsArgument,
    Limit,
    Output,
    PageNumber,
    Reason,
    asked_by,
)
from docgrid_cli.render import (
    Column,
    Format,
    View,
    age,
    show_facts,
    show_page,
    show_table,
    show_value,
    source_of,
)
from docgrid_cli.terminal import note
from docgrid_core.errors import RefusedError
from docgrid_core.jobs import DocumentId
from docgrid_core.store import documents, queries
from docgrid_core.store.queries import DocumentDetail, DocumentSummary, VersionView

app = new_group("documents")


@app.command("list")
def list_documents(limit: Limit = 50, page: PageNumber = 0, output: Output = Format.TABLE) -> None:
    """List documents in the order of their sources."""
    with find_installation().database(pool_size=1) as db:
        found = queries.list_documents(db, page=page, size=limit)
    show_page(found, DOCUMENTS, output)


@app.command("show")
def show_document(document: DocumentArgument, output: Output = Format.TABLE) -> None:
    """Show a document and its versions."""
    with find_installation().database(pool_size=1) as db:
        detail = queries.show_document(db, DocumentId(document))
    if output is Format.NAME:
        print(DOCUMENTS.name(detail.document))
    elif output is Format.TABLE:
        _show_detail(detail)
    else:
        show_value(detail, output)


@app.command("delete")
def delete_documents(ids: DocumentsArgument, reason: Reason = "deleted on the command line") -> None:
    """Delete documents: they are gone from search at once, their vectors and texts with the next retention."""
    failed = False
    with find_installation().database(pool_size=1) as db:
        for number in ids:
            try:
                documents.delete(db, DocumentId(number), reason=reason, by=asked_by())
            except RefusedError as error:  # the others can still be deleted
                note(str(error))
                failed = True
            else:
                print(f"document {number} deleted")
    if failed:
        raise typer.Exit(1)


def _show_detail(detail: DocumentDetail) -> None:
    document = detail.document
    show_facts(
        f"document {document.id}: {document.title}",
        {
            "status": document.status,
            "source": source_of(document.source_uri),
            "type": document.document_type,
            "searchable": _searchable(detail),
            "registered": f"{age(document.created_at)} ago",
        },
    )
    print()
    show_table(detail.versions, VERSIONS)


def _searchable(detail: DocumentDetail) -> str:
    document = detail.document
    if document.current_version_no is None:
        return "no version yet"
    return (
        f"version {document.current_version_no} with {detail.chunk_count} passages,"
        f" indexed {age(document.indexed_at)} ago"
    )


def _reason(version: VersionView) -> str:
    return f"{version.error_code}: {version.error_message}" if version.error_code else ""


DOCUMENTS = View[DocumentSummary](
    columns=[
        Column("ID", lambda row: row.id, right=True),
        Column("STATUS", lambda row: row.status),
        Column("TYPE", lambda row: row.document_type),
        Column("TITLE", lambda row: row.title, wide=True),
        Column("SEARCHABLE", lambda row: row.current_version_no and f"v{row.current_version_no}"),
        Column("NEWEST", lambda row: f"v{row.newest_version_no} {row.newest_version_status}"),
        Column("INDEXED", lambda row: age(row.indexed_at), right=True),
        Column("SOURCE", lambda row: source_of(row.source_uri), wide=True),
    ],
    name=lambda row: f"document/{row.id}",
    empty="no documents: register some with `docgrid ingest`",
)

VERSIONS = View[VersionView](
    columns=[
        Column("VERSION", lambda row: f"v{row.version_no}{' (searchable)' if row.is_current else ''}"),
        Column("STATUS", lambda row: row.status),
        Column("SIZE", lambda row: row.file_size, right=True),
        Column("AGE", lambda row: age(row.created_at), right=True),
        Column("JOB", lambda row: row.job_id, right=True),
        Column("REASON", _reason, wide=True),
    ],
    name=lambda row: f"version/{row.id}",
    empty="no versions",
)
