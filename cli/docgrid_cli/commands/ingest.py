"""`docgrid ingest`: registers files, folders and S3 prefixes, and tells what became of each document."""

from collections import Counter
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated

import typer

from docgrid_cli.commands import new_command
from docgrid_cli.ingestion.finding import Found, Passed, find
from docgrid_cli.ingestion.registering import LANES, Outcome, Registrar, Result, Wishes
from docgrid_cli.ingestion.waiting import wait_for_jobs
from docgrid_cli.installation import find_installation
from docgrid_cli.options import Output
from docgrid_cli.render import Column, Format, View, show_all, show_table, source_of
from docgrid_cli.terminal import note, progress
from docgrid_core.database import Database
from docgrid_core.errors import BadParameter, StorageMisconfigured
from docgrid_core.jobs import JobStatus
from docgrid_core.settings import ParsingSettings
from docgrid_core.store.documents import MAX_PRIORITY
from docgrid_core.store.queries import JobSummary
from docgrid_pipeline.objects import ObjectStore

app = new_command()

FEW = 10
"""Skipped files that are told one by one."""


@app.command("ingest")
def ingest(
    places: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Files, folders, or s3://bucket/prefix.")
    ],
    priority: Annotated[
        int,
        typer.Option("--priority", "-p", min=-MAX_PRIORITY, max=MAX_PRIORITY, help="Higher ones run first."),
    ] = 0,
    supersede: Annotated[
        bool, typer.Option("--supersede", help="Cancel an older version that is still being indexed.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Index again what has not changed.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the documents are indexed.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Register documents for indexing; workers do the rest, and unchanged documents are left alone.

    Files of other kinds in a folder are skipped. What can not be read is told, the others go on, and the exit code
    is 1. A run that was broken off can be repeated.
    """
    installation = find_installation()
    max_size = installation.load(ParsingSettings).max_file_size
    wishes = Wishes(priority=priority, supersede=supersede, force=force)
    with installation.database(pool_size=LANES) as db, installation.objects() as objects:
        found, missing = _find_all(places, objects)
        registrar = Registrar(db, objects, max_size=max_size, wishes=wishes)
        results = _register(registrar, found)
        _show(results, output)
        ended = _wait(db, results) if wait else []
    failed = missing or any(result.outcome is Outcome.FAILED for result in results)
    if failed or any(job.status is not JobStatus.INDEXED for job in ended):
        raise typer.Exit(1)


def _find_all(places: list[str], objects: ObjectStore) -> tuple[list[Found | Passed], bool]:
    """Return what all places hold, and whether one of them holds nothing."""
    found: list[Found | Passed] = []
    missing = False
    for place in places:
        try:
            here = list(find(place, objects))
        except (BadParameter, StorageMisconfigured) as error:
            note(f"{place}: {error.message}")
            missing = True
            continue
        if not any(isinstance(item, Found) or not item.skipped for item in here):
            note(f"{place}: there is no document in it" + (f", {len(here)} skipped" if here else ""))
            missing = True
        found += here
    return list({item.source_uri: item for item in found}.values()), missing


def _register(registrar: Registrar, found: list[Found | Passed]) -> list[Result]:
    results = []
    with progress("registering", len(found)) as advance:
        try:
            for result in registrar.register_all(found):
                results.append(result)
                advance()
        except BaseException:
            note(f"{len(results)} of {len(found)} are done: run the same command again to go on")
            raise
    return sorted(results, key=lambda result: result.source_uri)


def _wait(db: Database, results: list[Result]) -> list[JobSummary]:
    """Wait for the jobs of this run and tell how they ended."""
    waiting = {
        result.job_id: result
        for result in results
        if result.job_id is not None and result.outcome is not Outcome.FAILED
    }
    ended = []
    with progress("indexing", len(waiting)) as advance:
        for job in wait_for_jobs(db, waiting.keys()):
            ended.append(job)
            advance()
            if job.status is not JobStatus.INDEXED:
                why = f"{job.error_code}: {job.error_message}" if job.error_code else "canceled"
                note(f"{source_of(job.source_uri)}: {why} (`docgrid jobs show {job.id}`)")
    counts = Counter(job.status.value for job in ended)
    note(", ".join(f"{counts[status]} {status}" for status in sorted(counts)) or "nothing to wait for")
    return ended


def _show(results: list[Result], output: Format) -> None:
    if output is not Format.TABLE:
        show_all(
            [result for result in results if output is not Format.NAME or result.document_id], RESULTS, output
        )
        return
    for result in results:
        if result.outcome is Outcome.FAILED:
            note(f"{source_of(result.source_uri)}: {result.error_code}: {result.reason}")
    for line in _skipped(results):
        note(line)
    counts = Counter(result.outcome for result in results)
    if counts:
        show_table([(outcome, counts[outcome]) for outcome in Outcome if counts[outcome]], SUMMARY)


def _skipped(results: list[Result]) -> Iterator[str]:
    """Yield a line for each kind of file that was skipped, and for each file when there are few."""
    skipped = [result for result in results if result.outcome is Outcome.SKIPPED]
    if len(skipped) <= FEW:
        yield from (f"skipped {source_of(result.source_uri)}: {result.reason}" for result in skipped)
        return
    kinds = Counter(PurePosixPath(result.source_uri).suffix.lower() or "no suffix" for result in skipped)
    yield f"skipped {len(skipped)} files: " + ", ".join(f"{kinds[kind]} {kind}" for kind in sorted(kinds))


SUMMARY = View[tuple[Outcome, int]](
    columns=[
        Column("OUTCOME", lambda row: row[0]),
        Column("DOCUMENTS", lambda row: row[1], right=True),
    ],
    name=lambda row: row[0],
    empty="nothing to register",
)

RESULTS = View[Result](columns=[], name=lambda row: f"document/{row.document_id}", empty="")
