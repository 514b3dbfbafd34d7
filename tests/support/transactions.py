"""Every call of the protocol that writes, each with what has to be there before it: one table for many tests.

`arrange` prepares a database and returns the call, which may be made from any pool of connections to it. The
worker that makes an owner's call runs in the pod `POD`.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from docgrid_core.database import Database
from docgrid_core.jobs import FailureType, StopReason
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import (
    attempts,
    claim,
    complete,
    control,
    documents,
    embed,
    fail,
    leases,
    models,
    parse,
    recovery,
    release,
    workers,
)
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, STORE_TIMEOUT, Execution, Stage
from support import tables

POD = "pod-of-the-owner"
POLICY = RetryPolicy()
A_DAY = timedelta(days=1)
BROKEN = fail.Report(FailureType.WORKER_INTERNAL_ERROR, "it broke")
CONTENT = fail.Report(FailureType.DOCUMENT_CONTENT_INVALID, "no text in it")

_numbers = itertools.count(1)

Call = Callable[[Database], object]


@dataclass(frozen=True)
class ProtocolCall:
    """One call by its name, and what has to be there before it."""

    name: str
    arrange: Callable[[Database], Call]


def execution(db: Database, stage: Stage = Stage.STARTED) -> Execution:
    """Take the newer version of an indexed document up to a stage."""
    name = f"owned {next(_numbers)}"
    factories.index(db, name, "old")
    worker = factories.register_worker(db, pod_uid=POD)
    return factories.run(db, stage, document=factories.register(db, name, "new"), worker=worker)


def owned(stage: Stage, call: Callable[[Database, Execution], object]) -> Callable[[Database], Call]:
    """Return the arrangement of a call that the job's owner makes after `stage`."""

    def arrange(db: Database) -> Call:
        run = execution(db, stage)
        return lambda other: call(other, run)

    return arrange


def _arrange_start(db: Database) -> Call:
    document = factories.register(db)
    worker = factories.register_worker(db, pod_uid=POD)
    claimed = factories.claim_one(db, worker)
    if claimed.version_id != document.version_id:
        raise AssertionError("another job was first in the queue")
    return lambda other: attempts.start(other, claimed)


def _arrange_store_vectors(db: Database) -> Call:
    run = execution(db, Stage.EMBED_PREPARED)
    task = embed.prepare(db, run.own)
    if task is None:
        raise AssertionError("the vectors are stored already")
    vectors = factories.vectors(task, seed=7)
    return lambda other: embed.store(
        other, run.own, task, vectors, lease_duration=LEASE, timeout=STORE_TIMEOUT
    )


def _arrange_deferral_for_too_long(db: Database) -> Call:
    run = execution(db)
    tables.change(db, "UPDATE embedding_jobs SET deferred_since = clock_timestamp() - interval '2 days'")
    return lambda other: release.defer(
        other, run.own, factories.DEFERRAL, wait=LEASE, max_deferral=A_DAY, policy=POLICY
    )


OWNER_CALLS = [
    ProtocolCall("start", _arrange_start),
    ProtocolCall("parse.prepare", owned(Stage.STARTED, lambda db, run: parse.prepare(db, run.own))),
    ProtocolCall(
        "parse.store",
        owned(
            Stage.PARSE_PREPARED,
            lambda db, run: parse.store(db, run.own, factories.chunks(), lease_duration=LEASE),
        ),
    ),
    ProtocolCall("embed.prepare", owned(Stage.CHUNKS_STORED, lambda db, run: embed.prepare(db, run.own))),
    ProtocolCall("embed.store", _arrange_store_vectors),
    ProtocolCall("complete", owned(Stage.VECTORS_STORED, lambda db, run: complete.complete(db, run.own))),
    ProtocolCall(
        "fail, retried",
        owned(Stage.VECTORS_STORED, lambda db, run: fail.fail(db, run.own, BROKEN, policy=POLICY)),
    ),
    ProtocolCall(
        "fail, final",
        owned(Stage.VECTORS_STORED, lambda db, run: fail.fail(db, run.own, CONTENT, policy=POLICY)),
    ),
    ProtocolCall(
        "defer",
        owned(
            Stage.EMBED_PREPARED,
            lambda db, run: release.defer(
                db, run.own, factories.DEFERRAL, wait=LEASE, max_deferral=A_DAY, policy=POLICY
            ),
        ),
    ),
    ProtocolCall("defer for too long", _arrange_deferral_for_too_long),
    ProtocolCall(
        "release",
        owned(Stage.CHUNKS_STORED, lambda db, run: release.release(db, run.claim, reason="shutdown")),
    ),
    ProtocolCall(
        "release unknown",
        owned(Stage.CHUNKS_STORED, lambda db, run: claim.release_unknown(db, run.worker.id, [])),
    ),
    ProtocolCall(
        "cancel own",
        owned(Stage.VECTORS_STORED, lambda db, run: control.cancel_own(db, run.own, reason="newer")),
    ),
    ProtocolCall(
        "renew",
        owned(
            Stage.STARTED, lambda db, run: leases.renew(db, run.worker, [run.claim], lease_duration=2 * LEASE)
        ),
    ),
]


def _arrange_registration(content: str, *, supersede: bool = False) -> Callable[[Database], Call]:
    def arrange(db: Database) -> Call:
        factories.index(db, "known", "old")
        if supersede:
            document = factories.register(db, "known", "in flight")
            factories.run(db, Stage.VECTORS_STORED, document=document)
        name = "new" if content == "first" else "known"
        return lambda other: documents.register(other, factories.source(name, content), supersede=supersede)

    return arrange


def _arrange_registration_again(db: Database) -> Call:
    run = execution(db, Stage.VECTORS_STORED)
    tables.change(db, "UPDATE embedding_jobs SET retry_count = max_retry_count WHERE status = 'PROCESSING'")
    fail.fail(db, run.own, BROKEN, policy=POLICY)
    name = tables.document(db, run.claim.job_id).title
    return lambda other: factories.register(other, name, "new")


def _arrange_worker(db: Database) -> Call:
    factories.register_worker(db, pod_uid=POD)
    identity = factories.identity(pod_uid=POD)
    return lambda other: workers.register(other, identity)


def _arrange_claim(db: Database) -> Call:
    factories.register(db)
    worker = factories.register_worker(db)
    return lambda other: claim.claim(other, worker, limit=5, lease_duration=LEASE)


def _arrange_promotion(db: Database) -> Call:
    factories.register(db)
    tables.change(db, "UPDATE embedding_jobs SET next_retry_at = clock_timestamp()")
    return claim.promote


def _arrange_heartbeat(db: Database) -> Call:
    worker = factories.register_worker(db)
    return lambda other: workers.heartbeat(other, worker, running_jobs=1)


def _arrange_stop(db: Database) -> Call:
    worker = factories.register_worker(db)
    return lambda other: workers.stop(other, worker)


def _arrange_end(db: Database) -> Call:
    factories.register_worker(db, pod_uid=POD)
    return lambda other: workers.mark_pod_ended(other, pod_uid=POD, reason=StopReason.ERROR)


def _arrange_end_of_one(db: Database) -> Call:
    worker = factories.register_worker(db)
    return lambda other: workers.mark_ended(other, worker.id, StopReason.DELETED)


def _arrange_overdue(db: Database) -> Call:
    worker = factories.register_worker(db)
    tables.silence(db, worker.id)
    since = workers.read_clock(db) - A_DAY
    return lambda other: workers.mark_overdue(other, watched_since=since)


def _arrange_deletion(db: Database) -> Call:
    run = execution(db, Stage.VECTORS_STORED)
    return lambda other: documents.delete(other, run.document.document_id, reason="", by="test")


def _arrange_cancel(db: Database) -> Call:
    run = execution(db, Stage.VECTORS_STORED)
    return lambda other: control.cancel(other, run.claim.job_id, reason="", by="test")


def _arrange_retry(db: Database) -> Call:
    run = execution(db, Stage.VECTORS_STORED)
    fail.fail(db, run.own, CONTENT, policy=POLICY)
    return lambda other: control.retry(other, run.claim.job_id, reason="", by="test")


def _arrange_recovery(db: Database) -> Call:
    """One job to release, one to retry, one that ends for good: a batch that makes every kind of move."""
    final = factories.run(db, Stage.VECTORS_STORED)
    tables.change(db, "UPDATE embedding_jobs SET retry_count = max_retry_count")
    retried = factories.run(db, Stage.CHUNKS_STORED)
    for run in (final, retried):
        tables.expire_lease(db, run.claim.job_id)
    factories.run(db, worker=factories.register_worker(db, pod_uid=POD))
    workers.mark_pod_ended(db, pod_uid=POD, reason=StopReason.EVICTED)
    return lambda other: recovery.recover_batch(other, limit=10, policy=POLICY)


def _arrange_one(
    call: Callable[[Database, Execution], object],
) -> Callable[[Database], Call]:
    def arrange(db: Database) -> Call:
        run = execution(db, Stage.VECTORS_STORED)
        tables.expire_lease(db, run.claim.job_id)
        return lambda other: call(other, run)

    return arrange


def _arrange_activation(db: Database) -> Call:
    models.add(db, provider="builtin", name="next", version="1", dimension=8, config={})
    return lambda other: models.activate(other, "next")


OTHER_CALLS = [
    ProtocolCall("register a worker", _arrange_worker),
    ProtocolCall("heartbeat", _arrange_heartbeat),
    ProtocolCall("stop", _arrange_stop),
    ProtocolCall("mark a pod ended", _arrange_end),
    ProtocolCall("mark ended", _arrange_end_of_one),
    ProtocolCall("mark overdue", _arrange_overdue),
    ProtocolCall("claim", _arrange_claim),
    ProtocolCall("promote", _arrange_promotion),
    ProtocolCall("register a new document", _arrange_registration("first")),
    ProtocolCall("register a new version", _arrange_registration("new")),
    ProtocolCall("supersede", _arrange_registration("newest", supersede=True)),
    ProtocolCall("go back to the current version", _arrange_registration("old", supersede=True)),
    ProtocolCall("register again what failed", _arrange_registration_again),
    ProtocolCall("delete", _arrange_deletion),
    ProtocolCall("cancel", _arrange_cancel),
    ProtocolCall("retry", _arrange_retry),
    ProtocolCall("recover a batch", _arrange_recovery),
    ProtocolCall(
        "recover one",
        _arrange_one(lambda db, run: recovery.recover_one(db, run.claim.job_id, policy=POLICY)),
    ),
    ProtocolCall("quarantine", _arrange_one(lambda db, run: recovery.quarantine_one(db, run.claim.job_id))),
    ProtocolCall("activate a model", _arrange_activation),
]
