"""The order of the quickstart, from an empty folder to a clean stop."""

from collections.abc import Sequence
from pathlib import Path

from docgrid_cli.commands.jobs import JOBS
from docgrid_cli.commands.search import HITS, ask
from docgrid_cli.ingestion.finding import Found, find
from docgrid_cli.ingestion.registering import Registrar, Wishes
from docgrid_cli.installation import Installation
from docgrid_cli.local.profile import Profile
from docgrid_cli.local.stack import LocalStack, down, running
from docgrid_cli.narrator import Narrator
from docgrid_cli.quickstart.kill import kill_in_mid_job
from docgrid_cli.quickstart.onlooker import Onlooker
from docgrid_cli.quickstart.proof import (
    BROKEN,
    LONG,
    QUESTIONS,
    SAMPLES,
    Promise,
    check_answers,
    check_database,
    check_jobs,
)
from docgrid_cli.render import Column, View, show_table
from docgrid_core.database import Database
from docgrid_core.jobs import JobId
from docgrid_core.settings import ParsingSettings
from docgrid_core.store.queries import JobDetail, show_job
from docgrid_core.store.search import SearchHit

WORKERS = 2
_KILL_LIMIT = 60.0  # seconds
_END_LIMIT = 180.0  # seconds


def tell_story(home: Path, narrator: Narrator) -> bool:
    """Run the quickstart with all its files in `home`; tell whether everything held."""
    narrator.headline("1. A local stack starts: PostgreSQL, an S3 server, an embedding model, two workers")
    stack = LocalStack(home, workers=WORKERS, report=narrator.tell_event)
    with running(stack) as profile:
        promises = _use(stack, profile, narrator)
        narrator.headline("6. The stack stops")
    promises.append(Promise("nothing was left running", not down(home)))
    narrator.tell("stopped")
    return _conclude(promises, narrator)


def _use(stack: LocalStack, profile: Profile, narrator: Narrator) -> list[Promise]:
    installation = Installation(profile.settings())
    with installation.database() as db:
        narrator.headline("2. The sample documents are registered")
        jobs = _register(installation, db, narrator)
        onlooker = Onlooker(db, narrator, jobs)
        narrator.headline("3. Workers index them; one is killed in the middle of a job")
        kill = kill_in_mid_job(
            db, stack.workers, title=LONG, limit=_KILL_LIMIT, announce=onlooker.kill_follows
        )
        onlooker.watch_until_ended(limit=_END_LIMIT)
        narrator.status("")
        narrator.headline("4. What became of the jobs")
        details = [show_job(db, job) for job in jobs]
        _show_jobs(details, narrator)
        narrator.headline("5. Three questions")
        answers = _ask(installation, narrator)
        return [*check_jobs(details, kill), check_answers(answers), check_database(db)]


def _register(installation: Installation, db: Database, narrator: Narrator) -> list[JobId]:
    """Register the samples, the long one first and with a higher priority, so that a worker begins with it."""
    max_size = installation.load(ParsingSettings).max_file_size
    jobs = []
    with installation.objects() as objects:
        found = [item for item in find(str(SAMPLES), objects) if isinstance(item, Found)]
        for item in sorted(found, key=lambda item: item.title != LONG):
            wishes = Wishes(priority=10 if item.title == LONG else 0)
            result = Registrar(db, objects, max_size=max_size, wishes=wishes).register(item)
            if result.job_id is not None:
                jobs.append(result.job_id)
    narrator.tell(f"{len(jobs)} documents registered: texts, Markdown and HTML in English, Korean and German")
    return sorted(jobs)


def _show_jobs(details: Sequence[JobDetail], narrator: Narrator) -> None:
    narrator.status("")
    show_table(details, OUTCOMES)
    for detail in details:
        if detail.job.title == BROKEN:
            narrator.plain()
            narrator.plain(
                f"{BROKEN} is broken on purpose. {detail.job.error_code}: {detail.job.error_message}"
            )


def _ask(installation: Installation, narrator: Narrator) -> list[list[SearchHit]]:
    answers = []
    for question in QUESTIONS:
        narrator.plain()
        narrator.plain(f"“{question.text}” ({question.remark})")
        hits = ask(installation, question.text, top_k=3)
        show_table(hits, HITS)
        answers.append(hits)
    return answers


def _conclude(promises: Sequence[Promise], narrator: Narrator) -> bool:
    narrator.headline("Did it hold?")
    for promise in promises:
        narrator.tell(
            f"{'yes' if promise.held else 'NO '}  {promise.text}", "green" if promise.held else "bold red"
        )
    return all(promise.held for promise in promises)


def _workers(detail: JobDetail) -> str:
    """Return who ran a job, one after the other; a restarted worker has its old name but is another one."""
    told: list[str] = []
    names: set[str] = set()
    for attempt in detail.attempts:
        new = "the new " if attempt.worker_name in names else ""
        names.add(attempt.worker_name)
        told.append(f"{new}{attempt.worker_name} ({attempt.status})")
    return ", then ".join(told)


OUTCOMES = View[JobDetail](
    columns=[
        Column("JOB", lambda detail: detail.job.id, right=True),
        Column("STATUS", lambda detail: detail.job.status),
        Column("DOCUMENT", lambda detail: detail.job.title),
        Column("ATTEMPTS", lambda detail: len(detail.attempts), right=True),
        Column("WORKERS", _workers, wide=True),
        Column("ERROR", lambda detail: detail.job.error_code),
    ],
    name=lambda detail: JOBS.name(detail.job),
    empty="no jobs",
)
