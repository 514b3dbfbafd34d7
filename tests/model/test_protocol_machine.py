"""Random histories of the protocol: owners that are late, workers that end, people who interfere.

Hypothesis draws the calls and their order; every one is a real transaction. A claim that was taken over keeps calling
for ever. Each call may succeed or be refused for one of its documented reasons; whatever else happens is a bug. The
machine knows which claim of a job is the last one, so that no other may ever write, and the invariants are checked
every few steps and at the end.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from docgrid_core import maintenance
from docgrid_core.database import Database
from docgrid_core.errors import (
    AttemptAlreadyEnded,
    AttemptMismatch,
    CancelNotAllowed,
    ChunkingNotAllowed,
    CompletionNotAllowed,
    DocGridError,
    DocumentNotFound,
    EmbeddingNotAllowed,
    EmbeddingSetInconsistent,
    IndexingSetInconsistent,
    JobNotFound,
    JobNotProcessing,
    JobOwnershipLost,
    LeaseExpired,
    RetryNotAllowed,
    VersionInProgress,
    WorkerFenced,
    WorkerNotFound,
)
from docgrid_core.jobs import DocumentId, FailureType, JobId, StopReason, WorkerId
from docgrid_core.records import Claim, ClaimToken, Completion, EmbeddingModel, EmbedTask, Ownership
from docgrid_core.retry import CRASHES, RetryPolicy
from docgrid_core.settings import MaintenanceSettings
from docgrid_core.store import (
    attempts,
    claim,
    complete,
    control,
    documents,
    embed,
    fail,
    leases,
    parse,
    prune,
    release,
    workers,
)
from docgrid_core.store.workers import RegisteredWorker
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Stage
from docgrid_core.testing.invariants import violations
from support import tables

HISTORIES = 300
STEPS = 40
STEPS_BETWEEN_CHECKS = 10

POLICY = RetryPolicy()
A_MOMENT = timedelta(milliseconds=1)
A_DAY = timedelta(days=1)
KEEP_NOTHING = MaintenanceSettings(keep_indexed=A_MOMENT, keep_failed=A_MOMENT, keep_workers=A_MOMENT)

NOT_OWNER = (JobNotFound, JobNotProcessing, JobOwnershipLost, LeaseExpired)
NOT_RUNNING = (*NOT_OWNER, AttemptMismatch)

R = TypeVar("R")

# Few names and few contents, so that histories meet.
names = st.sampled_from(["a", "b", "c"])
contents = st.sampled_from(["one", "two", "three"])
COUNT_UNRECOVERED = """
    SELECT count(*) FROM embedding_jobs j JOIN worker_nodes w ON w.id = j.locked_by_worker_id
    WHERE j.status = 'PROCESSING' AND (w.status IN ('STOPPED', 'DEAD') OR j.lock_expires_at <= clock_timestamp())
"""

SUBJECTS = {
    "delete": "SELECT id, deleted_at IS NULL AS fits FROM documents ORDER BY id DESC",
    "cancel": "SELECT id, status IN ('PENDING', 'PROCESSING') AS fits FROM embedding_jobs ORDER BY id DESC",
    "retry": "SELECT id, status = 'FAILED' AS fits FROM embedding_jobs ORDER BY id DESC",
}

CLEAR = """
    DELETE FROM indexing_events; DELETE FROM embedding_job_attempts; DELETE FROM embedding_jobs;
    DELETE FROM embeddings; DELETE FROM document_chunks; UPDATE documents SET current_version_id = NULL;
    DELETE FROM document_versions; DELETE FROM documents; DELETE FROM file_objects; DELETE FROM worker_nodes
"""

# As long as nobody has retried a job by hand, its counter says how many of its failures were retried.
COUNT_MISCOUNTED = """
    SELECT count(*) FROM embedding_jobs j
    WHERE NOT EXISTS (SELECT FROM indexing_events WHERE embedding_job_id = j.id AND event_type = 'MANUAL_RETRY')
      AND retry_count <> (SELECT count(*) FROM embedding_job_attempts WHERE embedding_job_id = j.id AND retried)
"""

# Whole lives are drawn most often: what comes after a completion needs one.
stages = st.sampled_from([*Stage, Stage.COMPLETED, Stage.COMPLETED])
reports = st.sampled_from(
    [fail.Report(failure, "it went wrong") for failure in FailureType if failure not in CRASHES]
)


@dataclass(frozen=True)
class Running:
    """A started execution and the claim that it came from."""

    claim: Claim
    own: Ownership


class ProtocolMachine(RuleBasedStateMachine):
    """One random history on an empty database; see the module.

    Few rules with many variants each: a history has to get somewhere within its steps.
    """

    db: Database
    model: EmbeddingModel

    crew = Bundle("crew")
    claims = Bundle("claims")
    executions = Bundle("executions")

    def __init__(self) -> None:
        super().__init__()
        tables.change(self.db, CLEAR)
        self.steps = 0
        self.succeeded = False
        self.expired: set[ClaimToken] = set()
        self.last_claim: dict[JobId, ClaimToken] = {}
        self.held: dict[WorkerId, list[Claim]] = {}
        self.tasks: dict[Ownership, EmbedTask] = {}
        self.completed: dict[JobId, Completion] = {}
        self.reported: dict[Ownership, fail.Report] = {}

    # --- documents -----------------------------------------------------------------------------------

    @initialize(data=st.data())
    def register_two(self, data: st.DataObject) -> None:
        """Begin with two documents."""
        for name in ("a", "b"):
            documents.register(self.db, factories.source(name, data.draw(contents)))

    @rule(name=names, content=contents, supersede=st.booleans(), force=st.booleans())
    def register(self, name: str, content: str, supersede: bool, force: bool) -> None:
        """Register a document, known or new."""
        source = factories.source(name, content)
        self.try_to(
            lambda: documents.register(self.db, source, supersede=supersede, force=force), VersionInProgress
        )

    @rule(how=st.sampled_from(["delete", "cancel", "retry"]), fits=st.booleans(), data=st.data())
    def interfere(self, how: str, fits: bool, data: st.DataObject) -> None:
        """Let a person act, mostly on something that can be acted upon, or else on anything."""
        rows = tables.fetch(self.db, SUBJECTS[how])
        subjects = [row.id for row in rows if row.fits] if fits else [row.id for row in rows]
        if not subjects:
            return
        subject = data.draw(st.sampled_from(subjects))
        if how == "delete":
            delete = partial(documents.delete, self.db, DocumentId(subject), reason="", by="test")
            self.try_to(delete, DocumentNotFound)
        elif how == "cancel":
            cancel = partial(control.cancel, self.db, JobId(subject), reason="", by="test")
            self.try_to(cancel, CancelNotAllowed)
        else:
            retry = partial(control.retry, self.db, JobId(subject), reason="", by="test")
            self.try_to(retry, RetryNotAllowed)

    # --- workers and the queue -----------------------------------------------------------------------

    @initialize(target=crew)
    def start_two(self) -> Any:
        """Begin with two workers."""
        return multiple(self.start_worker(), self.start_worker())

    @rule(target=crew)
    def start_worker(self) -> RegisteredWorker:
        """Start a worker."""
        return factories.register_worker(self.db, pod_uid=str(uuid.uuid4()))

    @rule(worker=crew, how=st.sampled_from([None, "stop", "silence", *StopReason]))
    def lead_life(self, worker: RegisteredWorker, how: str | None) -> None:
        """Let a worker beat, stop, fall silent, or be marked ended."""
        if how is None:
            workers.heartbeat(self.db, worker, running_jobs=1)
        elif how == "stop":
            workers.stop(self.db, worker)
        elif how == "silence":
            tables.silence(self.db, worker.id)
            workers.mark_overdue(self.db, watched_since=workers.read_clock(self.db) - A_DAY)
        else:
            for row in tables.fetch(self.db, "SELECT pod_uid FROM worker_nodes WHERE id = :id", id=worker.id):
                workers.mark_pod_ended(self.db, pod_uid=row.pod_uid, reason=StopReason(how))

    @rule(target=claims, worker=crew, limit=st.integers(1, 3))
    def claim(self, worker: RegisteredWorker, limit: int) -> Any:
        """Claim without starting."""
        return multiple(*self.claimed(worker, limit))

    @rule(target=executions, worker=crew, upto=stages)
    def run_next(self, worker: RegisteredWorker, upto: Stage) -> Any:
        """Claim a job and take it up to a stage, so that histories get far."""
        runs = [run for item in self.claimed(worker, 1) if (run := self.started(item)) is not None]
        for run in runs:
            self.work(run, upto)
        return multiple(*runs)

    @rule(target=executions, claimed=claims)
    def start(self, claimed: Claim) -> Any:
        """Start a claim, perhaps a late one."""
        started = self.started(claimed)
        return multiple() if started is None else started

    @rule(run=executions, how=st.sampled_from(["expire", "renew", "forget"]))
    def lease(self, run: Running, how: str) -> None:
        """Let a lease run out, be renewed, or be unknown to its worker."""
        held = self.held[run.claim.worker_id]
        if how == "expire":
            tables.expire_lease(self.db, run.claim.job_id)
            self.expired.add(self.last_claim[run.claim.job_id])
        elif how == "forget":
            known = [item.token for item in held if item.token != run.claim.token]
            claim.release_unknown(self.db, run.claim.worker_id, known)
        else:
            worker = self.worker_of(run)
            for job_id, renewal in leases.renew(self.db, worker, held, lease_duration=LEASE).items():
                if renewal is leases.Renewal.RENEWED:
                    assert self.last_claim[job_id] in {item.token for item in held} - self.expired

    @rule(how=st.sampled_from(["recover", "promote", "prune"]), limit=st.integers(1, 3))
    def maintain(self, how: str, limit: int) -> None:
        """Run a service of maintenance."""
        if how == "recover":
            maintenance.recover(self.db, limit=limit, policy=POLICY)
            assert tables.value(self.db, COUNT_UNRECOVERED) == 0
        elif how == "promote":
            tables.come_due(self.db)
            claim.promote(self.db)
        else:
            prune.prune(self.db, KEEP_NOTHING)

    # --- executions, the late ones too ---------------------------------------------------------------

    @rule(run=executions, upto=stages)
    def work(self, run: Running, upto: Stage) -> None:
        """Do what a worker does, in its order, up to a stage."""
        for stage in range(Stage.PARSE_PREPARED, upto + 1):
            self.call(run, Stage(stage))

    @rule(run=executions, step=st.sampled_from(Stage))
    def call(self, run: Running, step: Stage) -> None:
        """Make one call out of order."""
        calls: dict[Stage, tuple[Callable[[], object], tuple[type[DocGridError], ...]]] = {
            Stage.STARTED: (partial(attempts.start, self.db, run.claim), ()),
            Stage.PARSE_PREPARED: (partial(parse.prepare, self.db, run.own), (ChunkingNotAllowed,)),
            Stage.CHUNKS_STORED: (partial(self.store_chunks, run), (ChunkingNotAllowed,)),
            # A version that has no chunks yet, or no vectors.
            Stage.EMBED_PREPARED: (
                partial(self.prepare_embedding, run),
                (EmbeddingNotAllowed, EmbeddingSetInconsistent),
            ),
            Stage.VECTORS_STORED: (partial(self.store_vectors, run), (EmbeddingNotAllowed,)),
            Stage.COMPLETED: (
                partial(self.complete, run),
                (CompletionNotAllowed, IndexingSetInconsistent),
            ),
        }
        call, refusals = calls[step]
        self.as_owner(run.claim, call, *NOT_RUNNING, *refusals)

    @rule(run=executions, report=reports)
    def fail(self, run: Running, report: fail.Report) -> None:
        """Report a failure."""
        call = partial(fail.fail, self.db, run.own, report, policy=POLICY)
        if self.try_to(call, *NOT_RUNNING, AttemptAlreadyEnded) is not None:
            assert self.reported.setdefault(run.own, report) == report, "another report is never taken"

    @rule(run=executions, how=st.sampled_from(["defer", "defer for too long", "release", "cancel"]))
    def give_back(self, run: Running, how: str) -> None:
        """Give a job back."""
        patience = timedelta(0) if how == "defer for too long" else A_DAY
        call: Callable[[], object] = partial(
            release.defer,
            self.db,
            run.own,
            factories.DEFERRAL,
            wait=LEASE,
            max_deferral=patience,
            policy=POLICY,
        )
        if how == "release":
            call = partial(release.release, self.db, run.claim, reason="shutdown")
        elif how == "cancel":
            call = partial(control.cancel_own, self.db, run.own, reason="superseded")
        self.as_owner(run.claim, call, *NOT_RUNNING)

    def store_chunks(self, run: Running) -> None:
        """Store the same chunks whoever parses."""
        parse.store(self.db, run.own, factories.chunks(2), lease_duration=LEASE)

    def prepare_embedding(self, run: Running) -> None:
        """Prepare, and keep what is to be embedded."""
        task = embed.prepare(self.db, run.own)
        if task is not None:
            self.tasks[run.own] = task

    def store_vectors(self, run: Running) -> None:
        """Store vectors for what was prepared, however long ago."""
        task = self.tasks.get(run.own)
        if task is None:
            raise EmbeddingNotAllowed("nothing was prepared: a worker has nothing to store")
        factories.store_vectors(self.db, run.own, task)

    def complete(self, run: Running) -> None:
        """Complete; whatever was answered first is answered ever after."""
        done = complete.complete(self.db, run.own)
        assert self.completed.setdefault(run.claim.job_id, done) == done, "a job is completed once"

    def claimed(self, worker: RegisteredWorker, limit: int) -> tuple[Claim, ...]:
        """Claim, and remember which claim of each job is the last one."""
        call = partial(claim.claim, self.db, worker, limit=limit, lease_duration=LEASE)
        answer = self.try_to(call, WorkerFenced, WorkerNotFound)
        if answer is None:
            return ()
        for item in answer.claims:
            self.last_claim[item.job_id] = item.token
            self.held.setdefault(worker.id, []).append(item)
        return answer.claims

    def started(self, claimed: Claim) -> Running | None:
        """Start a claim's execution, unless it is refused."""
        started = self.as_owner(claimed, partial(attempts.start, self.db, claimed), *NOT_OWNER)
        return None if started is None else Running(claimed, started.ownership)

    def worker_of(self, run: Running) -> RegisteredWorker:
        """Return the worker of an execution."""
        rows = tables.fetch(
            self.db, "SELECT instance_id FROM worker_nodes WHERE id = :id", id=run.claim.worker_id
        )
        instance = rows[0].instance_id if rows else uuid.uuid4()  # pruned
        return RegisteredWorker(run.claim.worker_id, instance, self.model)

    # --- what must hold ------------------------------------------------------------------------------

    @invariant()
    def look(self) -> None:
        """Check the invariants every few steps: it costs more than a step does."""
        self.steps += 1
        if self.steps % STEPS_BETWEEN_CHECKS == 0:
            self.check()

    def teardown(self) -> None:
        """Check the invariants at the end of the history."""
        self.check()

    def check(self) -> None:
        """Check the invariants, and that every retry was counted."""
        assert violations(self.db) == []
        assert tables.value(self.db, COUNT_MISCOUNTED) == 0

    def as_owner(self, claimed: Claim, call: Callable[[], R], *refusals: type[DocGridError]) -> R | None:
        """Make an owner's call: it may succeed for the last claim of the job alone."""
        result = self.try_to(call, *refusals)
        if self.succeeded:
            assert self.last_claim[claimed.job_id] == claimed.token, "a claim that was taken over has written"
        return result

    def try_to(self, call: Callable[[], R], *refusals: type[DocGridError]) -> R | None:
        """Make a call that may be refused for these reasons; return None if it was."""
        self.succeeded = False
        try:
            result = call()
        except refusals:
            return None
        self.succeeded = True
        return result


@pytest.mark.timeout(600)
def test_no_history_breaks_an_invariant_or_lets_a_late_owner_write(
    db: Database, model: EmbeddingModel
) -> None:
    class Machine(ProtocolMachine):
        pass

    Machine.db, Machine.model = db, model
    limits = settings(max_examples=HISTORIES, stateful_step_count=STEPS, print_blob=True)
    run_state_machine_as_test(Machine, settings=limits)
