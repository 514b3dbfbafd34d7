"""Starting an execution: numbers taken under the job's lock, and the same answer when asked again."""

from functools import partial

from docgrid_core.database import Database
from docgrid_core.jobs import VersionStatus
from docgrid_core.store import attempts, release
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Stage
from support import races, tables


def test_a_started_attempt_is_the_claims_and_has_the_next_number(db: Database) -> None:
    run = factories.run(db)
    release.release(db, run.claim, reason="shutdown")
    again = factories.run(db, document=run.document)

    first, second = tables.attempts(db, run.claim.job_id)
    assert (first.attempt_no, first.status) == (1, "RELEASED")
    assert (second.attempt_no, second.status) == (2, "STARTED")
    assert (second.worker_node_id, second.claim_token) == (again.worker.id, again.claim.token.value)
    assert second.id == again.own.attempt_id


def test_starting_again_is_the_same_attempt(db: Database) -> None:
    document, worker = factories.register(db), factories.register_worker(db)
    claimed = factories.claim_one(db, worker)

    assert attempts.start(db, claimed) == attempts.start(db, claimed)
    assert len(tables.attempts(db, document.job_id)) == 1


def test_two_starts_of_one_claim_at_once_make_one_attempt(db: Database) -> None:
    document, worker = factories.register(db), factories.register_worker(db)
    claimed = factories.claim_one(db, worker)

    first, *others = races.together([partial(attempts.start, db, claimed)] * 4)

    assert isinstance(first, attempts.Started)
    assert others == [first] * 3
    assert len(tables.attempts(db, document.job_id)) == 1


def test_a_started_execution_knows_where_its_version_stands(db: Database) -> None:
    run = factories.run(db, Stage.CHUNKS_STORED)
    assert attempts.start(db, run.claim).version_status is VersionStatus.CHUNKED
