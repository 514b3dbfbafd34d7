"""The fence: every call of an owner is refused code by code, in the protocol's order, and changes nothing."""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from sqlalchemy import text

from docgrid_core.database import Database
from docgrid_core.errors import (
    AttemptMismatch,
    DocGridError,
    JobNotFound,
    JobNotProcessing,
    JobOwnershipLost,
    LeaseExpired,
    OwnershipIncomplete,
)
from docgrid_core.jobs import AttemptId, FailureType, JobId, JobStatus, ModelId, VersionId, WorkerId
from docgrid_core.records import ClaimToken, EmbedTask, StoredChunk
from docgrid_core.retry import RetryPolicy
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import attempts, complete, control, embed, fail, parse, release
from docgrid_core.store.ownership import LockedJob
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Execution, Stage
from support import races, tables

REPORT = fail.Report(FailureType.WORKER_INTERNAL_ERROR, "it broke")


@dataclass(frozen=True)
class OwnerCall:
    """A call that only the job's owner may make, and how far the execution has come before it."""

    name: str
    stage: Stage
    call: Callable[[Database, Execution], object]
    has_attempt: bool = True


def store_vectors(db: Database, run: Execution) -> None:
    task = stored_task(db, run)
    embed.store(db, run.own, task, factories.vectors(task), lease_duration=LEASE, timeout=LEASE)


def stored_task(db: Database, run: Execution) -> EmbedTask:
    rows = tables.fetch(
        db,
        "SELECT id, chunk_index, chunk_text, content_hash FROM document_chunks"
        " WHERE document_version_id = :id ORDER BY chunk_index",
        id=run.document.version_id,
    )
    return EmbedTask(
        tuple(StoredChunk(row.id, row.chunk_index, row.chunk_text, row.content_hash) for row in rows),
        run.worker.model,
    )


CALLS = [
    OwnerCall("start", Stage.STARTED, lambda db, run: attempts.start(db, run.claim), has_attempt=False),
    OwnerCall("parse.prepare", Stage.STARTED, lambda db, run: parse.prepare(db, run.own)),
    OwnerCall(
        "parse.store",
        Stage.PARSE_PREPARED,
        lambda db, run: parse.store(db, run.own, factories.chunks(), lease_duration=LEASE),
    ),
    OwnerCall("embed.prepare", Stage.CHUNKS_STORED, lambda db, run: embed.prepare(db, run.own)),
    OwnerCall("embed.store", Stage.EMBED_PREPARED, store_vectors),
    OwnerCall("complete", Stage.VECTORS_STORED, lambda db, run: complete.complete(db, run.own)),
    OwnerCall("fail", Stage.STARTED, lambda db, run: fail.fail(db, run.own, REPORT, policy=RetryPolicy())),
    OwnerCall(
        "defer",
        Stage.STARTED,
        lambda db, run: release.defer(
            db, run.own, factories.DEFERRAL, wait=LEASE, max_deferral=LEASE, policy=RetryPolicy()
        ),
    ),
    OwnerCall("cancel_own", Stage.STARTED, lambda db, run: control.cancel_own(db, run.own, reason="newer")),
    OwnerCall(
        "release",
        Stage.STARTED,
        lambda db, run: release.release(db, run.claim, reason="shutdown"),
        has_attempt=False,
    ),
]

WITH_ATTEMPT = [call for call in CALLS if call.has_attempt]


def named(calls: list[OwnerCall]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("owner_call", calls, ids=[call.name for call in calls])


def with_token(run: Execution, token: ClaimToken) -> Execution:
    return replace(run, own=replace(run.own, token=token), claim=replace(run.claim, token=token))


def with_worker(run: Execution, worker_id: WorkerId) -> Execution:
    return replace(
        run, own=replace(run.own, worker_id=worker_id), claim=replace(run.claim, worker_id=worker_id)
    )


def refuses(db: Database, owner_call: OwnerCall, run: Execution, error: type[DocGridError]) -> None:
    before = tables.dump(db)
    with pytest.raises(error) as caught:
        owner_call.call(db, run)
    assert type(caught.value) is error
    assert tables.dump(db) == before


@named(CALLS)
def test_a_job_that_does_not_exist_is_not_found(db: Database, owner_call: OwnerCall) -> None:
    run = factories.run(db, owner_call.stage)
    unknown = JobId(run.claim.job_id + 1000)
    stranger = replace(run, own=replace(run.own, job_id=unknown), claim=replace(run.claim, job_id=unknown))
    refuses(db, owner_call, stranger, JobNotFound)


@named(CALLS)
@pytest.mark.parametrize("end", ["released", "canceled"])
def test_a_job_that_is_not_processing_is_refused_before_its_owner_is_looked_at(
    db: Database, owner_call: OwnerCall, end: str
) -> None:
    run = factories.run(db, owner_call.stage)
    if end == "released":
        release.release(db, run.claim, reason="shutdown")
    else:
        control.cancel(db, run.claim.job_id, reason="test", by="test")
    refuses(db, owner_call, run, JobNotProcessing)
    refuses(db, owner_call, with_token(run, ClaimToken(uuid.uuid4())), JobNotProcessing)


@named(CALLS)
def test_incomplete_ownership_fields_are_a_fault_before_they_are_compared(
    db: Database, owner_call: OwnerCall
) -> None:
    run = factories.run(db, owner_call.stage)
    tables.change(db, "ALTER TABLE embedding_jobs DROP CONSTRAINT embedding_jobs_processing_check")
    tables.change(db, "UPDATE embedding_jobs SET claim_token = NULL")
    refuses(db, owner_call, run, OwnershipIncomplete)


@named(CALLS)
def test_another_claims_job_is_refused_before_its_lease_is_looked_at(
    db: Database, owner_call: OwnerCall
) -> None:
    run = factories.run(db, owner_call.stage)
    other = factories.register_worker(db)
    tables.expire_lease(db, run.claim.job_id)
    refuses(db, owner_call, with_token(run, ClaimToken(uuid.uuid4())), JobOwnershipLost)
    refuses(db, owner_call, with_worker(run, other.id), JobOwnershipLost)


@named(CALLS)
def test_the_token_of_an_earlier_claim_of_the_same_worker_is_refused(
    db: Database, owner_call: OwnerCall
) -> None:
    run = factories.run(db, owner_call.stage)
    release.release(db, run.claim, reason="shutdown")
    factories.run(db, document=run.document, worker=run.worker)
    refuses(db, owner_call, run, JobOwnershipLost)


@named(CALLS)
def test_an_expired_lease_is_refused_before_the_attempt_is_looked_at(
    db: Database, owner_call: OwnerCall
) -> None:
    run = factories.run(db, owner_call.stage)
    tables.expire_lease(db, run.claim.job_id)
    refuses(db, owner_call, run, LeaseExpired)
    refuses(db, owner_call, replace(run, own=replace(run.own, attempt_id=AttemptId(0))), LeaseExpired)


@named(CALLS)
def test_a_lease_that_runs_out_while_the_call_waits_for_the_job_is_refused(
    db: Database, database_settings: DatabaseSettings, owner_call: OwnerCall
) -> None:
    """The clock is read once the lock is held, not when it is asked for."""
    run = factories.run(db, owner_call.stage)
    with races.connected(database_settings, application_name="waiting") as waiting:
        with db._engine.begin() as holder:
            lease = "UPDATE embedding_jobs SET lock_expires_at = clock_timestamp() + interval '150 ms' WHERE id = :id"
            tables.change(db, lease, id=run.claim.job_id)
            lock = text("SELECT lock_expires_at FROM embedding_jobs WHERE id = :id FOR NO KEY UPDATE")
            expiry = holder.execute(lock, {"id": run.claim.job_id}).scalar_one()
            late = races.Call(partial(owner_call.call, waiting, run))
            races.wait_until(lambda: races.waits_for_lock(db, "waiting") or not late.is_running())
            races.wait_until(lambda: tables.value(db, "SELECT clock_timestamp() > :expiry", expiry=expiry))
        assert type(late.error()) is LeaseExpired


@named(WITH_ATTEMPT)
def test_an_attempt_that_is_not_the_running_one_of_this_claim_is_refused(
    db: Database, owner_call: OwnerCall
) -> None:
    run = factories.run(db, Stage.STARTED)
    release.release(db, run.claim, reason="shutdown")
    again = factories.run(db, owner_call.stage, document=run.document, worker=run.worker)
    neighbour = factories.run(db)

    for attempt_id in (run.own.attempt_id, neighbour.own.attempt_id, AttemptId(0)):
        refuses(
            db, owner_call, replace(again, own=replace(again.own, attempt_id=attempt_id)), AttemptMismatch
        )


@named(WITH_ATTEMPT)
def test_an_attempt_that_another_claim_has_started_is_refused(db: Database, owner_call: OwnerCall) -> None:
    """Such rows disagree, and can not arise: the fence does not rely on it."""
    run = factories.run(db, owner_call.stage)
    tables.change(db, "UPDATE embedding_job_attempts SET claim_token = gen_random_uuid()")
    refuses(db, owner_call, run, AttemptMismatch)


@named(CALLS)
def test_every_owner_call_is_made_by_the_owner(db: Database, owner_call: OwnerCall) -> None:
    """What the refusals above are worth: the same call goes through when nothing is wrong."""
    owner_call.call(db, factories.run(db, owner_call.stage))


@pytest.mark.parametrize(("left", "valid"), [(1, True), (0, False), (-1, False)])
def test_a_lease_that_ends_exactly_now_has_expired(left: int, valid: bool) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    token = ClaimToken(uuid.uuid4())
    job = LockedJob(
        id=JobId(1),
        version_id=VersionId(1),
        model_id=ModelId(1),
        status=JobStatus.PROCESSING,
        retry_count=0,
        max_retry_count=3,
        deferred_since=None,
        worker_id=WorkerId(1),
        token=token.value,
        locked_at=now - LEASE,
        lock_expires_at=now + timedelta(microseconds=left),
        completed_at=None,
        now=now,
    )
    if valid:
        job.require_owner(WorkerId(1), token)
    else:
        with pytest.raises(LeaseExpired):
            job.require_owner(WorkerId(1), token)
