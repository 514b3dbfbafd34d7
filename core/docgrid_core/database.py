"""Connections, transactions and the translation of driver errors: what every store function runs in.

`Database.run` is the unit of work: it commits what its body did or leaves nothing of it, repeats it when the
server asks for that (deadlock, serialization, lock time-out), and turns every driver error into one of ours,
without the row, the parameters or the server's text (a CHECK violation prints the row).
"""

import functools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg
from pgvector.psycopg import register_vector
from sqlalchemy import Connection, CursorResult, TextClause, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from docgrid_core.errors import (
    Busy,
    DatabaseForbids,
    DatabaseUnavailable,
    DatabaseUnusable,
    DocGridError,
    InternalError,
    SettingsError,
    StatementTimeout,
)
from docgrid_core.jobs import ModelId
from docgrid_core.settings import DatabaseSettings
from docgrid_core.wakeups import CHANNEL, Listener, Notifier

P = ParamSpec("P")
R = TypeVar("R")

MAX_TRIES = 5
_KEEPALIVE = {"tcp_keepalives_idle": 5, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 2}
_TCP_USER_TIMEOUT_MS = 15_000

_REPEATABLE = frozenset({"40P01", "40001", "55P03"})  # deadlock, serialization failure, lock not available
_READ_ONLY = "25006"
_TIMED_OUT = "57014"
_NO_RIGHT = "42501"
# Connection trouble, shutdown and start-up, cut off while idle in a transaction, out of a resource.
_UNAVAILABLE = ("08", "57P", "25P03", "53", "58")


class Transaction:
    """One open transaction: what the body of a store function works with."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.made_ready: dict[ModelId, bool] = {}

    def execute(self, statement: TextClause, **parameters: Any) -> CursorResult[*tuple[Any, ...]]:
        """Run one statement; parameters are bound, never formatted in."""
        return self.connection.execute(statement, parameters)

    def copy_in(self, statement: str, types: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Send rows by binary `COPY … FROM STDIN`; `types` are the columns' SQL types."""
        driver = self.connection.connection.driver_connection
        if driver is None:
            raise DatabaseUnavailable
        if driver.adapters.types.get("vector") is None:
            register_vector(driver)
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)

    def limit_statements(self, timeout: timedelta) -> None:
        """Give the statements of this transaction `timeout` instead of the session's limit."""
        self.connection.exec_driver_sql(f"SET LOCAL statement_timeout = {_milliseconds(timeout)}")

    def announce_ready(self, model_id: ModelId, *, urgent: bool = False) -> None:
        """Wake workers of this model once the transaction is committed; `urgent` is never held back."""
        self.made_ready[model_id] = self.made_ready.get(model_id, False) or urgent


class Database:
    """A small pool of connections to one database, shared by the threads of a process.

    Opens no connection before it is used. In a worker `application_name` carries its instance id, so that
    maintenance can end the sessions of a frozen process.
    """

    def __init__(self, settings: DatabaseSettings, *, application_name: str, pool_size: int = 5) -> None:
        self.settings = settings
        self._application_name = application_name
        self._engine = create_engine(
            database_url(settings),
            pool_size=pool_size,
            max_overflow=0,
            pool_use_lifo=True,  # the connection used last has its statements prepared
            pool_timeout=10,
            hide_parameters=True,
            # Whatever the server's default is: "read in a later statement than the lock" holds only here.
            isolation_level="READ COMMITTED",
            connect_args=connect_arguments(settings, application_name),
        )
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._notifier = Notifier(self._send_wakeup)

    def close(self) -> None:
        """Send what wake-ups are due and close every idle connection."""
        self._notifier.close()
        self._engine.dispose()

    def run(self, body: Callable[[Transaction], R]) -> R:
        """Run `body` in one transaction and return its result; nothing remains of a body that raised.

        Raises `Busy` after `MAX_TRIES`, `DatabaseUnavailable` when the connection is lost (in the commit
        too: the caller must ask again, and every transaction of the protocol answers a repetition),
        `InternalError` for any other statement error, and whatever `body` raises.
        """
        for tries in range(1, MAX_TRIES + 1):
            try:
                with self._translated(), self._engine.connect() as connection, connection.begin():
                    transaction = Transaction(connection)
                    result = body(transaction)
            except StartOver:
                if tries < MAX_TRIES:
                    time.sleep(random.uniform(0, 0.02 * 2**tries))  # noqa: S311 - spreads rivals apart
                continue
            self._notifier.announce(transaction.made_ready)
            return result
        raise Busy

    def run_statement(self, statement: TextClause, parameters: Mapping[str, Any]) -> list[Any]:
        """Run one statement that is its own transaction, in one round trip, and return its rows.

        Not repeated: a claim must not be made twice. Raises as `run` does.
        """
        try:
            with self._translated(), self._autocommit.connect() as connection:
                result = connection.execute(statement, parameters)
                return list(result) if result.returns_rows else []  # DDL returns none
        except StartOver:
            raise Busy from None

    def announce_ready(self, model_id: ModelId) -> None:
        """Wake workers of this model: for transitions made by `run_statement`."""
        self._notifier.announce({model_id: False})

    def listener(self) -> Listener | None:
        """Return a connection that waits for wake-ups; None where LISTEN is impossible, behind a pooler."""
        if self.settings.pooler:
            return None
        address = (
            database_url(self.settings).set(drivername="postgresql").render_as_string(hide_password=False)
        )
        arguments = connect_arguments(self.settings, self._application_name)
        return Listener(lambda: psycopg.connect(address, autocommit=True, **arguments))

    def listen_to_statements(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with each statement before it is sent: where tests inject faults."""

        @event.listens_for(self._engine, "before_cursor_execute")
        def before(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            listener(statement)

    def _send_wakeup(self, model_id: ModelId) -> None:
        with self._translated(), self._autocommit.connect() as connection:
            connection.exec_driver_sql("SELECT pg_notify(%s, %s)", (CHANNEL, str(model_id)))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate driver errors; `from None`, because a driver's error carries rows and parameters."""
        try:
            yield
        except DocGridError:
            raise
        except PoolTimeout:
            raise Busy("no free connection in the pool") from None
        except DBAPIError as error:
            translated = translate(error.orig)
        except psycopg.Error as error:  # from the driver's own COPY
            translated = translate(error)
        else:
            return
        if isinstance(translated, DatabaseUnavailable):
            self._engine.dispose()  # a restarted or demoted server: no pooled connection is worth keeping
        raise translated from None


class StartOver(Exception):
    """The transaction must begin again: the server says so, or what was read before the locks has changed.

    A signal between a transaction's body and `Database.run`; it never leaves this package.
    """


def transactional(body: Callable[Concatenate[Transaction, P], R]) -> Callable[Concatenate[Database, P], R]:
    """Turn a transaction's body into a function of the database that runs it as one unit of work."""

    @functools.wraps(body)
    def run(db: Database, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return db.run(lambda transaction: body(transaction, *args, **kwargs))

    return run


def database_url(settings: DatabaseSettings) -> URL:
    """Return the address for SQLAlchemy with psycopg; raises `SettingsError` when it is none."""
    try:
        url = make_url(settings.url.get_secret_value())
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        url = None
    if url is None or url.get_backend_name() not in {"postgresql", "postgres"}:
        raise SettingsError(
            "DOCGRID_DATABASE_URL=(secret): must be postgresql://user:password@host:port/database"
            " (percent-encode special characters of the password)"
        )
    return url.set(drivername="postgresql+psycopg")


def connect_arguments(settings: DatabaseSettings, application_name: str) -> dict[str, Any]:
    """Return the driver's arguments that put every session under the limits of the protocol.

    Behind a transaction pooler start-up options are refused, and a prepared statement may meet another server
    session: the limits are then set on the role (docs/operations), and nothing is prepared.
    """
    arguments: dict[str, Any] = {
        "application_name": application_name,
        "connect_timeout": max(1, round(settings.connect_timeout.total_seconds())),
        "keepalives": 1,
        "keepalives_idle": 5,
        "keepalives_interval": 5,
        "keepalives_count": 2,
        "tcp_user_timeout": _TCP_USER_TIMEOUT_MS,
    }
    if settings.pooler:
        return arguments | {"prepare_threshold": None}
    limits = {
        "lock_timeout": _milliseconds(settings.lock_timeout),
        "statement_timeout": _milliseconds(settings.statement_timeout),
        "idle_in_transaction_session_timeout": _milliseconds(settings.idle_in_transaction_timeout),
        "client_connection_check_interval": 1000,
        "tcp_user_timeout": _TCP_USER_TIMEOUT_MS,
        **_KEEPALIVE,
    }
    return arguments | {"options": " ".join(f"-c {name}={value}" for name, value in limits.items())}


def translate(error: BaseException | None) -> Exception:
    """Return our error for a driver's; its detail is SQLSTATE and constraint name, nothing else."""
    if not isinstance(error, psycopg.Error):
        return InternalError("unknown driver error")
    state = error.sqlstate or ""
    if state in _REPEATABLE:
        return StartOver()
    if state == _TIMED_OUT:
        return StatementTimeout(state)
    if state == _NO_RIGHT:
        return DatabaseForbids(state)
    if state == _READ_ONLY or state.startswith(_UNAVAILABLE):
        return DatabaseUnavailable(state)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return _connection_error(str(error), state)
    constraint = error.diag.constraint_name
    return InternalError(f"SQLSTATE {state}" + (f" constraint {constraint}" if constraint else ""))


# Before a session exists the driver reports no SQLSTATE, only the server's line.
_REFUSALS = {
    "password authentication failed": (
        "the database refuses the password: check user and password in DOCGRID_DATABASE_URL"
    ),
    "no password supplied": "the database asks for a password: DOCGRID_DATABASE_URL has none",
    "no pg_hba.conf entry": "the database lets neither host nor user in: check pg_hba.conf and TLS (sslmode)",
    "database": "the database of DOCGRID_DATABASE_URL does not exist: create it, then run `docgrid migrate`",
    "role": "the user of DOCGRID_DATABASE_URL does not exist: create it or correct the name",
}


def _connection_error(text: str, state: str) -> Exception:
    for sign, message in _REFUSALS.items():
        if sign in text and (" " in sign or "does not exist" in text):
            return DatabaseUnusable(message)
    return DatabaseUnavailable(state)


def _milliseconds(value: timedelta) -> int:
    return max(1, round(value.total_seconds() * 1000))
