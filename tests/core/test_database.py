"""Connections and transactions: limits of every session, repetitions, and errors that say nothing of the rows."""

import threading
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import text

from docgrid_core.database import MAX_TRIES, Database, StartOver, Transaction, translate
from docgrid_core.errors import (
    Busy,
    DatabaseForbids,
    DatabaseUnavailable,
    DocGridError,
    InternalError,
    JobNotFound,
    StatementTimeout,
)
from docgrid_core.settings import DatabaseSettings
from docgrid_core.testing import factories
from support import races, tables
from support.secrecy import everything_said

A_MOMENT = timedelta(milliseconds=50)


def raise_state(db: Database, state: str) -> None:
    """Let the server raise an error of this SQLSTATE, whose text holds what must not be seen."""
    tables.change(
        db,
        f"DO $$ BEGIN RAISE EXCEPTION 'canary-text' USING ERRCODE = '{state}', DETAIL = 'canary-detail'; END $$",
    )


def count_tries(db: Database) -> list[str]:
    """Return a list that grows with each statement that is sent."""
    statements: list[str] = []
    db.listen_to_statements(statements.append)
    return statements


# --- translation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["40P01", "40001", "55P03"])
def test_what_the_server_asks_to_repeat_is_repeated_so_often_and_no_more(db: Database, state: str) -> None:
    statements = count_tries(db)
    with pytest.raises(Busy):
        raise_state(db, state)
    assert len(statements) == MAX_TRIES


@pytest.mark.parametrize("state", ["40P01", "40001", "55P03"])
def test_one_statement_that_is_its_own_transaction_is_not_repeated(db: Database, state: str) -> None:
    """A claim must not be made twice."""
    statements = count_tries(db)
    with pytest.raises(Busy):
        db.run_statement(text(f"DO $$ BEGIN RAISE EXCEPTION '' USING ERRCODE = '{state}'; END $$"), {})
    assert len(statements) == 1


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("57014", StatementTimeout),
        ("42501", DatabaseForbids),
        ("25006", DatabaseUnavailable),
        ("25P03", DatabaseUnavailable),
        ("08006", DatabaseUnavailable),
        ("57P01", DatabaseUnavailable),
        ("57P03", DatabaseUnavailable),
        ("53300", DatabaseUnavailable),
        ("53100", DatabaseUnavailable),
        ("58030", DatabaseUnavailable),
        ("XX000", InternalError),
        ("42P01", InternalError),
        ("22012", InternalError),
    ],
)
def test_every_other_error_is_one_of_ours_and_says_its_state_alone(
    db: Database, state: str, error: type[DocGridError]
) -> None:
    statements = count_tries(db)
    with pytest.raises(error) as caught:
        raise_state(db, state)
    assert type(caught.value) is error
    assert len(statements) == 1
    assert state in vars(caught.value)["detail"]
    assert "canary" not in everything_said(caught.value)


def test_a_violation_names_its_constraint_and_neither_row_nor_parameter(db: Database) -> None:
    """PostgreSQL's own text prints the row."""
    with pytest.raises(InternalError) as caught:
        tables.change(
            db,
            "INSERT INTO documents (source_uri, title, document_type, status)"
            " VALUES ('canary-uri', :title, 'TXT', 'canary-status')",
            title="canary-title",
        )
    assert caught.value.detail == "SQLSTATE 23514 constraint documents_status_check"
    assert "canary" not in everything_said(caught.value)


def test_an_error_in_a_copy_is_translated_too(db: Database) -> None:
    def body(tx: Transaction) -> None:
        tx.execute(text("CREATE TEMPORARY TABLE staged (number int CHECK (number < 3)) ON COMMIT DROP"))
        tx.copy_in("COPY staged FROM STDIN (FORMAT BINARY)", ("int4",), [(1,), (4711,)])

    with pytest.raises(InternalError) as caught:
        db.run(body)
    assert caught.value.detail == "SQLSTATE 23514 constraint staged_number_check"
    assert "4711" not in everything_said(caught.value)


def test_an_error_that_is_not_the_drivers_is_internal() -> None:
    assert isinstance(translate(ValueError("canary")), InternalError)
    assert isinstance(translate(None), InternalError)


# --- transactions -----------------------------------------------------------------------------------


def test_a_lock_that_can_not_be_had_in_time_ends_as_busy(
    db: Database, database_settings: DatabaseSettings
) -> None:
    factories.register(db)
    lock = "SELECT id FROM embedding_jobs FOR NO KEY UPDATE"
    with races.connected(database_settings, lock_timeout=A_MOMENT) as impatient:
        statements = count_tries(impatient)
        with db._engine.begin() as holder:
            holder.execute(text(lock))
            with pytest.raises(Busy):
                tables.fetch(impatient, lock)
        assert len(statements) == MAX_TRIES
        assert len(tables.fetch(impatient, lock)) == 1


def test_a_statement_that_takes_too_long_ends_as_busy(
    db: Database, database_settings: DatabaseSettings
) -> None:
    with races.connected(database_settings, statement_timeout=A_MOMENT) as impatient:
        with pytest.raises(StatementTimeout):
            tables.fetch(impatient, "SELECT pg_sleep(60)")
        assert tables.value(impatient, "SELECT 1") == 1


def test_a_deadlock_is_repeated_until_both_are_through(db: Database) -> None:
    jobs = [factories.register(db).job_id for _ in range(2)]
    both_hold_one = threading.Barrier(2, timeout=races.LIMIT)
    tries: list[int | None] = []

    def lock_in_order(first: int | None, second: int | None) -> None:
        met = False

        def body(tx: Transaction) -> None:
            nonlocal met
            tries.append(first)
            update = text("UPDATE embedding_jobs SET priority = priority + 1 WHERE id = :id")
            tx.execute(update, id=first)
            if not met:
                met = True
                both_hold_one.wait()
            tx.execute(update, id=second)

        db.run(body)

    outcomes = races.together([partial(lock_in_order, *jobs), partial(lock_in_order, *reversed(jobs))])

    assert outcomes == [None, None]
    assert len(tries) == 3, "one of them was the victim, once"
    assert {row.priority for row in tables.fetch(db, "SELECT priority FROM embedding_jobs")} == {2}


def test_what_begins_again_too_often_is_busy_and_no_such_signal_leaves(db: Database) -> None:
    tries = []

    def body(_tx: Transaction) -> None:
        tries.append(1)
        raise StartOver

    with pytest.raises(Busy):
        db.run(body)
    assert len(tries) == MAX_TRIES


@pytest.mark.parametrize("error", [JobNotFound("gone"), KeyError("a bug"), KeyboardInterrupt()])
def test_what_a_body_raises_comes_out_and_nothing_of_it_remains(db: Database, error: BaseException) -> None:
    def body(tx: Transaction) -> None:
        tx.execute(text("DELETE FROM embedding_models"))
        raise error

    with pytest.raises(type(error)):
        db.run(body)
    assert tables.value(db, "SELECT count(*) FROM embedding_models") == 1


def test_a_transaction_left_idle_for_too_long_is_ended_and_the_next_one_works(
    db: Database, database_settings: DatabaseSettings
) -> None:
    with races.connected(database_settings, idle_in_transaction_timeout=A_MOMENT) as idle:

        def body(tx: Transaction) -> None:
            tx.execute(text("SELECT 1"))
            races.wait_until(lambda: not races.sessions(db, "docgrid-other"))
            tx.execute(text("SELECT 1"))

        with pytest.raises(DatabaseUnavailable):
            idle.run(body)
        assert tables.value(idle, "SELECT 1") == 1


def test_a_pool_without_a_free_connection_is_busy(db: Database, database_settings: DatabaseSettings) -> None:
    narrow = Database(database_settings, application_name="narrow", pool_size=1)
    narrow._engine.pool._timeout = 0.05  # type: ignore[attr-defined]
    with narrow._engine.connect(), pytest.raises(Busy):
        tables.value(narrow, "SELECT 1")
    narrow.close()


# --- sessions ---------------------------------------------------------------------------------------


def test_every_session_is_under_the_limits_of_the_protocol(database_settings: DatabaseSettings) -> None:
    expected = {
        "lock_timeout": "5s",
        "statement_timeout": "1min",
        "idle_in_transaction_session_timeout": "15s",
        "client_connection_check_interval": "1s",
        "tcp_keepalives_idle": "5",
        "tcp_user_timeout": "15s",
        "application_name": "docgrid-other",
    }
    with races.connected(database_settings) as db:
        shown = {name: tables.value(db, f"SHOW {name}") for name in expected}
        statement = tables.value(db, "SELECT current_setting('statement_timeout')")
        limited = db.run(limited_to_an_hour)
    assert statement == "1min"
    assert limited == "1h"
    assert shown == expected | {"tcp_user_timeout": shown["tcp_user_timeout"]}


def limited_to_an_hour(tx: Transaction) -> object:
    tx.limit_statements(timedelta(hours=1))
    return tx.execute(text("SELECT current_setting('statement_timeout')")).scalar_one()


def test_behind_a_pooler_nothing_is_set_at_the_start_and_nothing_prepared(
    database_settings: DatabaseSettings,
) -> None:
    with races.connected(database_settings.model_copy(update={"pooler": True})) as db:
        for _ in range(10):
            assert tables.value(db, "SELECT current_setting('lock_timeout')") == "0"
        assert tables.value(db, "SELECT count(*) FROM pg_prepared_statements") == 0
