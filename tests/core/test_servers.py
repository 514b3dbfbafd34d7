"""Servers that refuse, go away and come back, and what a caller is told of them."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial

import psycopg
import pytest
from pydantic import SecretStr
from sqlalchemy import text

from docgrid_cli.local.postgres import EmbeddedPostgres
from docgrid_core.database import Database, Transaction, translate
from docgrid_core.errors import (
    DatabaseUnavailable,
    DatabaseUnusable,
    DocGridError,
    SettingsError,
)
from docgrid_core.settings import DatabaseSettings
from support import races, tables
from support.secrecy import everything_said
from support.servers import embedded_postgres


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """Yield a server of this module's own, which asks for passwords and may be restarted."""
    with embedded_postgres() as server:
        yield server


def settings_for(url: str, **limits: timedelta) -> DatabaseSettings:
    return DatabaseSettings(url=SecretStr(url)).model_copy(update=limits)


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://u:secret-canary@h/d", "postgresql://u:secret-canary@h:port/d"]
)
def test_an_address_that_is_none_of_postgresqls_is_a_settings_error(url: str) -> None:
    with pytest.raises(SettingsError, match="DOCGRID_DATABASE_URL") as caught:
        Database(settings_for(url), application_name="x")
    assert "canary" not in everything_said(caught.value)


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
