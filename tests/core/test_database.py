"""Connections and transactions: limits of every session, repetitions, and errors that say nothing of the rows."""

import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from docgrid_cli.local.postgres import EmbeddedPostgres
from docgrid_core.database import MAX_TRIES, Database, StartOver, Transaction, translate
from docgrid_core.errors import (
    Busy,
    DatabaseForbids,
    DatabaseUnavailable,
    DatabaseUnusable,
    DocGridError,
    InternalError,
    JobNotFound,
    SettingsError,
    StatementTimeout,
)
from docgrid_core.settings import DatabaseSettings
from docgrid_core.testing import factories
from support import races, tables
from support.servers import embedded_postgres

A_MOMENT = timedelta(milliseconds=50)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """Yield a server of this module's own, which asks for passwords and may be restarted."""
    with embedded_postgres() as server:
        yield server


def settings_for(url: str, **limits: timedelta) -> DatabaseSettings:
    return DatabaseSettings(url=SecretStr(url)).model_copy(update=limits)


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


def everything_said(error: BaseException) -> str:
    shown = "".join(traceback.format_exception(error))
    return f"{error} {error!r} {vars(error)} {shown}"


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


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://u:secret-canary@h/d", "postgresql://u:secret-canary@h:port/d"]
)
def test_an_address_that_is_none_of_postgresqls_is_a_settings_error(url: str) -> None:
    with pytest.raises(SettingsError, match="DOCGRID_DATABASE_URL") as caught:
        Database(settings_for(url), application_name="x")
    assert "canary" not in everything_said(caught.value)


# --- servers that refuse, go and come back ----------------------------------------------------------


def refusal(url: str) -> DocGridError:
    db = Database(settings_for(url), application_name="x")
    with pytest.raises(DatabaseUnavailable) as caught:
        tables.value(db, "SELECT 1")
    db.close()
    return caught.value


def test_a_wrong_password_a_missing_database_or_user_is_said_in_a_line(server: EmbeddedPostgres) -> None:
    url = server.url()
    password = url.partition(":")[2].partition(":")[2].partition("@")[0]
    for wrong, message in {
        url.replace(password, "secret-canary"): "refuses the password",
        url.replace(f":{password}", ""): "asks for a password",
        server.url("missing-canary"): "does not exist: create it",
        url.replace("docgrid:", "nobody-canary:"): "refuses the password",
    }.items():
        error = refusal(wrong)
        assert isinstance(error, DatabaseUnusable)
        assert message in str(error)
        assert "\n" not in str(error)
        assert "canary" not in everything_said(error)


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ('FATAL:  role "canary" does not exist', "user of DOCGRID_DATABASE_URL does not exist"),
        ('FATAL:  no pg_hba.conf entry for host "canary", no encryption', "check pg_hba.conf"),
        ('FATAL:  database "canary" does not exist', "database of DOCGRID_DATABASE_URL does not exist"),
    ],
)
def test_refusals_that_depend_on_the_servers_configuration_are_told_apart(said: str, advice: str) -> None:
    error = translate(psycopg.OperationalError(f"connection failed: {said}"))
    assert isinstance(error, DatabaseUnusable)
    assert advice in error.message
    assert "canary" not in everything_said(error)


@pytest.mark.parametrize("said", ["the database system is starting up", "sorry, too many clients already"])
def test_a_server_that_starts_or_is_full_is_unavailable_and_not_misconfigured(said: str) -> None:
    """Case 12."""
    assert (
        type(translate(psycopg.OperationalError(f"connection failed: FATAL:  {said}"))) is DatabaseUnavailable
    )


def test_a_server_that_nobody_runs_is_unavailable() -> None:
    error = refusal("postgresql://u:secret-canary@127.0.0.1:1/d")
    assert type(error) is DatabaseUnavailable
    assert "canary" not in everything_said(error)


def test_a_restarted_server_is_found_again_by_itself(server: EmbeddedPostgres) -> None:
    db = Database(settings_for(server.url()), application_name="x")
    assert tables.value(db, "SELECT 1") == 1
    server.stop()
    with pytest.raises(DatabaseUnavailable):
        tables.value(db, "SELECT 1")
    server.start()
    assert tables.value(db, "SELECT 1") == 1
    db.close()


def test_no_pooled_connection_of_a_restarted_server_is_tried_again(
    db: Database, database_settings: DatabaseSettings
) -> None:
    """One call meets the loss, for a whole pool of dead connections."""
    with races.connected(database_settings) as pool:
        barrier = threading.Barrier(3, timeout=races.LIMIT)
        races.together([partial(pool.run, partial(meet, barrier))] * 3)
        tables.fetch(
            db,
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
            " WHERE application_name = 'docgrid-other' AND datname = current_database()",
        )
        with pytest.raises(DatabaseUnavailable):
            tables.value(pool, "SELECT 1")
        assert [tables.value(pool, "SELECT 1") for _ in range(3)] == [1, 1, 1]


def meet(barrier: threading.Barrier, tx: Transaction) -> None:
    tx.execute(text("SELECT 1"))
    barrier.wait()


@pytest.mark.parametrize("way", ["transaction", "statement"])
def test_a_pool_on_a_server_that_became_read_only_is_dropped_and_recovers(
    db: Database, database_settings: DatabaseSettings, way: str
) -> None:
    """Case 11: a demoted primary goes on answering; connections that are kept would stay read-only for ever."""
    name = tables.value(db, "SELECT current_database()")
    write = text("UPDATE embedding_models SET updated_at = now() RETURNING id")
    ways: dict[str, Callable[[Database], object]] = {
        "transaction": lambda pool: pool.run(lambda tx: tx.execute(write).all()),
        "statement": lambda pool: pool.run_statement(write, {}),
    }
    tables.change(db, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with races.connected(database_settings) as pool:
        assert tables.value(pool, "SELECT 1") == 1, "it is connected, and reads"
        with pytest.raises(DatabaseUnavailable) as caught:
            ways[way](pool)
        assert caught.value.detail == "25006"
        with db._engine.begin() as connection:
            connection.execute(text("SET TRANSACTION READ WRITE"))
            connection.execute(text(f'ALTER DATABASE "{name}" RESET default_transaction_read_only'))
        assert ways[way](pool) == [(1,)]


def test_a_lost_connection_in_the_middle_of_a_transaction_leaves_nothing(
    db: Database, database_settings: DatabaseSettings
) -> None:
    with races.connected(database_settings) as pool:

        def body(tx: Transaction) -> None:
            tx.execute(text("DELETE FROM embedding_models"))
            cut = (
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = :name"
            )
            tables.fetch(db, cut, name="docgrid-other")

        with pytest.raises(DatabaseUnavailable):
            pool.run(body)
    assert tables.value(db, "SELECT count(*) FROM embedding_models") == 1
