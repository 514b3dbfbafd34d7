"""The claim token is in the claim's own answer and nowhere else; texts and vectors are in no error and no event."""

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
import structlog
from structlog.testing import capture_logs

from docgrid_core.database import Database
from docgrid_core.errors import DocGridError
from docgrid_core.jobs import AttemptId, FailureType
from docgrid_core.maintenance import recover
from docgrid_core.records import ClaimToken
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import attempts, claim, complete, embed, fail, parse, release
from docgrid_core.store.ownership import lock_job, read_attempt
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, STORE_TIMEOUT, Execution, Stage
from support import tables
from support.secrecy import everything_said

POLICY = RetryPolicy()
BROKEN = fail.Report(FailureType.WORKER_INTERNAL_ERROR, "it broke")


def forms_of(token: ClaimToken) -> list[str]:
    return [str(token.value), token.value.hex, repr(token.value), str(token.value.int)]


def require_absent(token: ClaimToken, said: str) -> None:
    for form in forms_of(token):
        assert form not in said


def test_nothing_that_holds_a_token_shows_it(db: Database) -> None:
    document, worker = factories.register(db), factories.register_worker(db)
    answer = claim.claim(db, worker, limit=1, lease_duration=LEASE)
    (claimed,) = answer.claims
    started = attempts.start(db, claimed)
    locked = db.run(lambda tx: lock_job(tx, claimed.job_id))
    attempt = db.run(lambda tx: read_attempt(tx, started.ownership))

    shown = [document, worker, answer, claimed, claimed.token, started, started.ownership, locked, attempt]

    for thing in shown:
        require_absent(claimed.token, f"{thing!r} {thing!s} {thing}")
    assert locked.token == claimed.token.value, "it is there all the same"


def test_no_refusal_names_a_token_neither_the_callers_nor_the_owners(db: Database) -> None:
    run = factories.run(db, Stage.VECTORS_STORED)
    forged = ClaimToken(uuid.uuid4())
    stranger = replace(run.own, token=forged)
    late_calls: list[Callable[[], object]] = [
        lambda: attempts.start(db, replace(run.claim, token=forged)),
        lambda: parse.prepare(db, stranger),
        lambda: complete.complete(db, stranger),
        lambda: fail.fail(db, stranger, BROKEN, policy=POLICY),
        lambda: release.release(db, replace(run.claim, token=forged), reason="x"),
        lambda: complete.complete(db, replace(run.own, attempt_id=AttemptId(0))),
    ]
    for call in late_calls:
        with pytest.raises(DocGridError) as caught:
            call()
        said = everything_said(caught.value)
        for token in (forged, run.claim.token):
            require_absent(token, said)


def test_no_event_log_line_or_statement_of_a_life_holds_a_token(db: Database) -> None:
    structlog.reset_defaults()
    runs: list[Execution] = []
    with capture_logs() as logs:
        run = factories.run(db, Stage.CHUNKS_STORED)
        fail.fail(db, run.own, BROKEN, policy=POLICY)
        tables.come_due(db)
        claim.promote(db)
        runs += [run, factories.run(db, Stage.VECTORS_STORED, document=run.document)]
        release.release(db, runs[-1].claim, reason="shutdown")
        runs.append(factories.run(db, document=run.document))
        tables.expire_lease(db, run.claim.job_id)
        recover(db, limit=10, policy=POLICY)
        runs.append(factories.run(db, Stage.COMPLETED, document=run.document))
    events = tables.fetch(db, "SELECT e::text AS line FROM indexing_events e")
    # What pg_stat_activity shows of our sessions: parameters are bound, never part of the text.
    statements = tables.fetch(db, "SELECT query FROM pg_stat_activity WHERE application_name LIKE 'docgrid%'")
    for each in runs:
        for said in (repr(logs), *(row.line for row in events), *(row.query for row in statements)):
            require_absent(each.claim.token, said)
    assert len(events) > 10


def test_texts_and_vectors_are_in_no_repr_and_no_event(db: Database) -> None:
    run = factories.run(db, Stage.PARSE_PREPARED)
    chunks = [replace(chunk, section_title="canary-title") for chunk in factories.chunks(word="canary-text")]
    parse.store(db, run.own, chunks, lease_duration=LEASE)
    task = embed.prepare(db, run.own)
    assert task is not None
    embed.store(db, run.own, task, factories.vectors(task), lease_duration=LEASE, timeout=STORE_TIMEOUT)
    complete.complete(db, run.own)

    assert "canary" not in f"{chunks!r} {task!r}"
    events = tables.fetch(db, "SELECT e::text AS line FROM indexing_events e")
    assert "canary" not in " ".join(row.line for row in events)
