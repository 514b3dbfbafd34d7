"""Races and frozen sessions, made by barriers and signals: nothing here waits for time to pass.

`together` lets calls start at once. `Frozen` holds a call in front of one of its statements, its transaction
open, until it is thawed. `wait_until` is for what only the server can tell, such as "that session waits now".
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from docgrid_core.database import Database
from docgrid_core.errors import RefusedError
from docgrid_core.settings import DatabaseSettings
from support import tables

R = TypeVar("R")

LIMIT = 90.0
"""Seconds after which a call that should have come back is given up: a test then fails, it does not hang."""


class Call(Generic[R]):
    """A function that runs in a thread; `result` waits for it and returns or raises what it did."""

    def __init__(self, function: Callable[[], R]) -> None:
        self._function = function
        self._results: list[R] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the end, whatever it is."""
        self._thread.join(LIMIT)
        if self._thread.is_alive():
            raise TimeoutError("the call has not come back")

    def result(self) -> R:
        """Wait for the end; return or raise what the call did."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def error(self) -> BaseException:
        """Return what the call raised."""
        try:
            result = self.result()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error
        raise AssertionError(f"nothing was raised, the answer was {result!r}")

    def is_running(self) -> bool:
        """Tell whether the call has not come back yet."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self._error = error


def together(functions: Sequence[Callable[[], object]]) -> list[object]:
    """Call all functions at the same moment; return their results or the errors that they raised."""
    barrier = threading.Barrier(len(functions), timeout=LIMIT)

    def started(function: Callable[[], object]) -> Callable[[], object]:
        def call() -> object:
            barrier.wait()
            return function()

        return call

    outcomes: list[object] = []
    for call in [Call(started(function)) for function in functions]:
        try:
            outcomes.append(call.result())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            outcomes.append(error)
    return outcomes


def faults(outcomes: Sequence[object]) -> list[Exception]:
    """Return the errors among `outcomes` that are no refusal: what a race must not lead to."""
    return [
        outcome
        for outcome in outcomes
        if isinstance(outcome, Exception) and not isinstance(outcome, RefusedError)
    ]


class Frozen(Generic[R]):
    """A call that stands still in front of one of its statements, with its transaction open.

    `before` is the number of the statement, from 1, or a part of its text. `reached` tells whether there was such a
    statement; without one the call is over.
    """

    def __init__(self, db: Database, function: Callable[[], R], *, before: int | str) -> None:
        self._before = before
        self._count = 0
        self._stands = False
        self._arrived = threading.Event()
        self._go_on = threading.Event()
        db.listen_to_statements(self._on_statement)
        self.call = Call(self._finish(function))
        if not self._arrived.wait(LIMIT):
            raise TimeoutError("the call neither came to that statement nor to its end")

    @property
    def reached(self) -> bool:
        """Tell whether the call stands in front of that statement; it is over if it has fewer."""
        return self._stands

    def thaw(self) -> None:
        """Let the call go on."""
        self._go_on.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the call go on and wait for its end, so that its connection is back before the pool is closed."""
        self.thaw()
        self.call.wait()

    def _finish(self, function: Callable[[], R]) -> Callable[[], R]:
        def call() -> R:
            try:
                return function()
            finally:
                self._arrived.set()

        return call

    def _on_statement(self, statement: str) -> None:
        if self._arrived.is_set():
            return
        self._count += 1
        if self._before == self._count or (isinstance(self._before, str) and self._before in statement):
            self._stands = True
            self._arrived.set()
            self._go_on.wait(LIMIT)


@contextmanager
def connected(
    settings: DatabaseSettings, *, application_name: str = "docgrid-other", **limits: timedelta
) -> Iterator[Database]:
    """Yield a pool of its own, optionally under shorter limits: another process, as the database sees it."""
    db = Database(settings.model_copy(update=limits), application_name=application_name)
    try:
        yield db
    finally:
        db.close()


def wait_until(condition: Callable[[], object], *, limit: float = LIMIT) -> None:
    """Return as soon as `condition` holds; raises `TimeoutError` when it does not within `limit` seconds."""
    deadline, pause = time.monotonic() + limit, 0.005
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("what was waited for did not happen")
        time.sleep(pause)
        pause = min(1.2 * pause, 0.1)  # what takes long may be asked less often


def waits_for_lock(db: Database, application_name: str) -> bool:
    """Tell whether a session of that name waits for a lock."""
    rows = sessions(db, application_name)
    return any(row.wait_event_type == "Lock" for row in rows)


def sessions(db: Database, application_name: str) -> list[Any]:
    """Return the sessions of that name."""
    return tables.fetch(
        db,
        "SELECT pid, state, wait_event_type, query FROM pg_stat_activity"
        " WHERE application_name = :name AND datname = current_database()",
        name=application_name,
    )
