"""Registrations and deletions that meet each other on their way."""

from functools import partial

import pytest

from docgrid_core.database import Database
from docgrid_core.records import Registration
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import documents
from docgrid_core.testing import factories
from support import races, tables


def register(db: Database, content: str, *, supersede: bool = False, force: bool = False) -> Registration:
    return documents.register(db, factories.source("a", content), supersede=supersede, force=force)


def delete(db: Database, document: Registration) -> None:
    documents.delete(db, document.document_id, reason="", by="test")


def versions(db: Database) -> list[tuple[int, str]]:
    rows = tables.fetch(db, "SELECT version_no, status FROM document_versions ORDER BY version_no")
    return [(row.version_no, row.status) for row in rows]


def test_the_same_new_document_registered_at_once_is_one(db: Database) -> None:
    outcomes = races.together([partial(register, db, "same")] * 5)
    assert races.faults(outcomes) == []
    told = sorted(outcome.outcome for outcome in outcomes if isinstance(outcome, Registration))
    assert told == ["created"] + ["in_progress"] * 4
    assert versions(db) == [(1, "UPLOADED")]


def test_different_bytes_registered_at_once_supersede_each_other_whole(db: Database) -> None:
    register(db, "first")
    outcomes = races.together([partial(register, db, f"content {n}", supersede=True) for n in range(5)])
    assert races.faults(outcomes) == []
    assert [status for _, status in versions(db)] == ["CANCELED"] * 5 + ["UPLOADED"]
    assert tables.value(db, "SELECT count(*) FROM embedding_jobs WHERE status = 'PENDING'") == 1


def test_documents_with_the_same_bytes_share_the_object(db: Database) -> None:
    names = [f"document {n}" for n in range(6)]
    outcomes = races.together([partial(factories.register, db, name, "same") for name in names])
    assert races.faults(outcomes) == []
    assert tables.value(db, "SELECT count(*) FROM file_objects") == 1
    assert tables.value(db, "SELECT count(*) FROM documents") == 6


@pytest.mark.parametrize("statement", range(3, 7))
def test_a_registration_that_meets_a_newer_version_on_its_way_begins_again(
    db: Database, database_settings: DatabaseSettings, statement: int
) -> None:
    register(db, "first")
    with races.connected(database_settings) as slow:
        late = partial(register, slow, "late", supersede=True)
        with races.Frozen(slow, late, before=statement) as frozen:
            rival = races.Call(partial(register, db, "rival", supersede=True))
            if statement < 5:  # nothing is locked yet: the rival is through before the late one goes on
                rival.result()
        answers = [frozen.call.result(), rival.result()]
    assert sorted(answer.version_no for answer in answers) == [2, 3]
    assert [status for _, status in versions(db)] == ["CANCELED", "CANCELED", "UPLOADED"]


@pytest.mark.parametrize("statement", [3, 4])
def test_a_registration_that_meets_a_deletion_on_its_way_is_a_new_document(
    db: Database, database_settings: DatabaseSettings, statement: int
) -> None:
    first = register(db, "first")
    with races.connected(database_settings) as slow:
        late = partial(register, slow, "late", supersede=True)
        with races.Frozen(slow, late, before=statement) as frozen:
            delete(db, first)
        answer = frozen.call.result()
    assert (answer.outcome, answer.version_no) == ("created", 1)
    assert answer.document_id != first.document_id


def test_deletions_and_registrations_at_once_leave_whole_documents(db: Database) -> None:
    for number in range(6):
        document = register(db, f"before {number}", supersede=True)
        outcomes = races.together(
            [
                partial(delete, db, document),
                partial(register, db, f"after {number}", supersede=True),
                partial(delete, db, document),
            ]
        )
        assert races.faults(outcomes) == []
        live = tables.value(db, "SELECT count(*) FROM documents WHERE deleted_at IS NULL")
        pending = tables.value(db, "SELECT count(*) FROM embedding_jobs WHERE status = 'PENDING'")
        assert live == pending
