"""All or nothing: every transaction, failed on purpose in front of each of its statements and at its event."""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from docgrid_core.database import Database, Transaction
from docgrid_core.errors import DatabaseUnavailable, InternalError
from docgrid_core.records import NewChunk
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import parse
from docgrid_core.testing import factories
from docgrid_core.testing.factories import LEASE, Stage
from docgrid_core.testing.invariants import violations
from support import races, tables
from support.transactions import OTHER_CALLS, OWNER_CALLS, ProtocolCall

CALLS = [*OWNER_CALLS, *OTHER_CALLS]
MOST_STATEMENTS = 40

every_call = pytest.mark.parametrize("call", CALLS, ids=[call.name for call in CALLS])


class PlannedError(Exception):
    """What the test lets happen."""


class Interruption:
    """Counts the statements of a call, COPY among them, and fails in front of one of them.

    What the pool's own thread sends, a wake-up, is none of them.
    """

    def __init__(self, db: Database, at: int, fault: Callable[[], None]) -> None:
        self.count = 0
        self._at = at
        self._fault = fault
        self._thread = threading.get_ident()
        db.listen_to_statements(self.on_statement)

    def on_statement(self, _statement: str) -> None:
        """Count a statement that is about to be sent."""
        if threading.get_ident() != self._thread:
            return
        self.count += 1
        if self.count == self._at:
            self._fault()


@pytest.fixture
def visible_copies(monkeypatch: pytest.MonkeyPatch) -> list[Interruption]:
    """Let an interruption see COPY too, which the engine's hook does not."""
    current: list[Interruption] = []
    copy_in = Transaction.copy_in

    def seen(tx: Transaction, statement: str, types: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        for interruption in current[-1:]:
            interruption.on_statement(statement)
        copy_in(tx, statement, types, rows)

    monkeypatch.setattr(Transaction, "copy_in", seen)
    return current


def raise_planned() -> None:
    raise PlannedError


def cut_sessions(db: Database) -> None:
    tables.fetch(
        db,
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE application_name = 'docgrid-other' AND datname = current_database()",
    )


@every_call
@pytest.mark.parametrize("fault", ["exception", "connection lost"])
def test_nothing_remains_of_a_call_that_fails_in_front_of_any_of_its_statements(
    db: Database,
    database_settings: DatabaseSettings,
    visible_copies: list[Interruption],
    call: ProtocolCall,
    fault: str,
) -> None:
    act = call.arrange(db)
    before = tables.dump(db)
    happens = raise_planned if fault == "exception" else partial(cut_sessions, db)
    with races.connected(database_settings) as victim:
        for at in range(1, MOST_STATEMENTS):
            interruption = Interruption(victim, at, happens)
            visible_copies.append(interruption)
            try:
                act(victim)
            except (PlannedError, DatabaseUnavailable):
                assert tables.dump(db) == before, f"something remains of a failure at statement {at}"
            else:
                break
    # The last call was not interrupted: the same call, after all those failures.
    assert 1 <= interruption.count < at
    assert tables.dump(db) != before
    if fault == "exception":
        assert violations(db) == []


@every_call
@pytest.mark.parametrize("moment", ["event", "commit"])
def test_nothing_remains_of_a_call_whose_event_or_commit_fails(
    db: Database, call: ProtocolCall, moment: str
) -> None:
    act = call.arrange(db)
    before = tables.dump(db)
    kind = "TRIGGER planned BEFORE INSERT" if moment == "event" else "CONSTRAINT TRIGGER planned AFTER INSERT"
    deferred = "" if moment == "event" else "DEFERRABLE INITIALLY DEFERRED"
    tables.change(
        db,
        f"""
        CREATE FUNCTION planned() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'planned'; END $$;
        CREATE {kind} ON indexing_events {deferred} FOR EACH ROW EXECUTE FUNCTION planned()
        """,
    )
    try:
        act(db)
    except InternalError as error:
        assert error.detail == "SQLSTATE P0001"  # noqa: PT017 - a call without an event raises nothing
        assert tables.dump(db) == before
        tables.change(db, "DROP TRIGGER planned ON indexing_events")
        act(db)
    assert tables.dump(db) != before
    assert violations(db) == []


def test_nothing_remains_of_chunks_whose_transfer_breaks_off(db: Database) -> None:
    """In the middle of COPY, which no hook sees: the second chunk can not be read."""
    run = factories.run(db, Stage.PARSE_PREPARED)
    before = tables.dump(db)

    class Broken(list[NewChunk]):
        def __iter__(self) -> Iterator[NewChunk]:
            yield self[0]
            raise PlannedError

    with pytest.raises(PlannedError):
        parse.store(db, run.own, Broken(factories.chunks()), lease_duration=LEASE)

    assert tables.dump(db) == before
    parse.store(db, run.own, factories.chunks(), lease_duration=LEASE)


def test_nothing_remains_of_chunks_whose_connection_breaks_off(
    db: Database, database_settings: DatabaseSettings
) -> None:
    run = factories.run(db, Stage.PARSE_PREPARED)
    before = tables.dump(db)

    class Cutting(list[NewChunk]):
        def __iter__(self) -> Iterator[NewChunk]:
            yield self[0]
            cut_sessions(db)
            yield self[1]

    with races.connected(database_settings) as victim:
        with pytest.raises(DatabaseUnavailable):
            parse.store(victim, run.own, Cutting(factories.chunks()), lease_duration=LEASE)
        assert tables.dump(db) == before
        parse.store(victim, run.own, factories.chunks(), lease_duration=LEASE)
