"""Whether the quickstart held what it promises: each promise with what was seen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from docgrid_cli.quickstart.kill import Kill
from docgrid_core.database import Database
from docgrid_core.jobs import AttemptStatus, JobStatus
from docgrid_core.store.queries import JobDetail
from docgrid_core.store.search import SearchHit
from docgrid_core.testing.invariants import violations

SAMPLES = Path(__file__).parent.parent / "samples"
LONG = "handbook.md"
"""The sample of several pages: long enough to be embedded for seconds."""
BROKEN = "old-catalogue.txt"
"""The sample that is not UTF-8, on purpose."""


@dataclass(frozen=True)
class Question:
    """A search, and the sample in which the answer stands."""

    text: str
    answer_in: str
    remark: str


QUESTIONS = (
    Question("When must the dome be closed?", "handbook.md", "an English question"),
    Question("What is the name of the cat?", "ko-house-rules.md", "an English question, a Korean answer"),
    Question("Warum geht der Teig in der Höhe schneller auf?", "de-brot.md", "a German question"),
)


@dataclass(frozen=True)
class Promise:
    """What must hold, and whether it does."""

    text: str
    held: bool


def check_jobs(jobs: Sequence[JobDetail], kill: Kill) -> Iterator[Promise]:
    """Yield what must hold for the jobs of the samples."""
    whole = [detail for detail in jobs if detail.job.title != BROKEN]
    indexed = [detail for detail in whole if detail.job.status is JobStatus.INDEXED]
    yield Promise(f"{len(indexed)} of {len(whole)} whole documents are indexed", len(indexed) == len(whole))
    broken = [detail.job.status for detail in jobs if detail.job.title == BROKEN]
    yield Promise("the broken document failed alone", broken == [JobStatus.FAILED])
    (killed,) = (detail for detail in jobs if detail.job.id == kill.job.id)
    attempts = [attempt.status for attempt in killed.attempts]
    yield Promise(
        f"job {kill.job.id} was recovered: {len(attempts)} attempts, the last one succeeded",
        attempts == [AttemptStatus.FAILED, AttemptStatus.SUCCESS],
    )


def check_answers(answers: Sequence[Sequence[SearchHit]]) -> Promise:
    """Return whether each question was answered from the right document first."""
    right = sum(
        bool(hits) and hits[0].title == question.answer_in
        for question, hits in zip(QUESTIONS, answers, strict=True)
    )
    return Promise(
        f"{right} of {len(QUESTIONS)} questions are answered from the right document", right == len(QUESTIONS)
    )


def check_database(db: Database) -> Promise:
    """Return whether all invariants of the database hold."""
    found = violations(db)
    return Promise(
        "all invariants of the database hold" + "".join(f"; {violation}" for violation in found), not found
    )
