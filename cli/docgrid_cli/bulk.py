"""Retrying and canceling many jobs: choosing them, asking once, then one transaction for each.

Called by `docgrid jobs retry` and `docgrid jobs cancel`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import typer

from docgrid_cli.terminal import confirm, note, progress
from docgrid_core.database import Database
from docgrid_core.errors import RefusedError
from docgrid_core.jobs import JobId
from docgrid_core.store.queries import JobFilter, job_ids

_MOST = 1_000_000
"""Jobs that one command changes at most."""
_TOLD = 5
"""Refusals of a bulk change that are told; most often they are of one kind."""


@dataclass(frozen=True)
class Change:
    """What is done to each job, and how it is called before and after."""

    verb: str
    done: str
    apply: Callable[[JobId], None]


def change_named(ids: Sequence[int], change: Change) -> None:
    """Change the jobs that a person named; a refusal of one leaves the others, and fails the command."""
    refused = 0
    for number in ids:
        try:
            change.apply(JobId(number))
        except RefusedError as error:
            note(str(error))
            refused += 1
        else:
            print(f"job {number} {change.done}")
    if refused:
        raise typer.Exit(1)


def change_matching(db: Database, filters: Sequence[JobFilter], change: Change, *, yes: bool) -> None:
    """Change every job that one of the filters matches, after asking; one that has moved on is passed over."""
    found = [job for wanted in filters for job in job_ids(db, wanted, limit=_MOST)]
    if not found:
        print("no job matches")
        return
    confirm(f"{change.verb.capitalize()} {_count(len(found))}?", yes=yes)
    refusals = []
    with progress(f"{change.verb} jobs", len(found)) as advance:
        for job in found:
            try:
                change.apply(job)
            except RefusedError as error:
                refusals.append(str(error))
            advance()
    for refusal in refusals[:_TOLD]:
        note(refusal)
    passed_over = f", {len(refusals)} passed over" if refusals else ""
    print(f"{_count(len(found) - len(refusals))} {change.done}{passed_over}")


def _count(number: int) -> str:
    return f"{number} job" if number == 1 else f"{number} jobs"
