"""Loops survive their rounds, obey the apiserver's wish for rest, and say when something is wrong with them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from docgrid_core.errors import DatabaseUnavailable
from docgrid_operator import loops
from docgrid_operator.cluster import TooManyRequests
from docgrid_operator.loops import ERROR_BUDGET, Loop
from support.races import wait_until

LONG = timedelta(minutes=5)


@contextmanager
def running(run_once: Callable[[], object], *, interval: timedelta = LONG) -> Iterator[Loop]:
    loop = Loop("test", run_once, interval=interval, rest=0.0)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()
        loop.join(10)


class Rounds:
    """Counts rounds; each one raises what `errors` holds next."""

    def __init__(self, *errors: Exception) -> None:
        self.count = 0
        self._errors = list(errors)

    def run_once(self) -> None:
        """Count, and raise the next error if there is one."""
        self.count += 1
        if self._errors:
            raise self._errors.pop(0)


def test_a_loop_begins_at_once_and_runs_again_when_woken() -> None:
    rounds = Rounds()
    with running(rounds.run_once) as loop:
        wait_until(lambda: rounds.count == 1)
        loop.wake()
        wait_until(lambda: rounds.count == 2)


def test_a_wake_during_a_round_is_not_lost() -> None:
    inside, go_on = threading.Event(), threading.Event()
    count = 0

    def run_once() -> None:
        nonlocal count
        count += 1
        inside.set()
        go_on.wait(10)

    with running(run_once) as loop:
        assert inside.wait(10)
        loop.wake()
        go_on.set()
        wait_until(lambda: count == 2)


def test_an_outage_and_an_unexpected_error_end_their_round_alone() -> None:
    rounds = Rounds(DatabaseUnavailable("away"), ValueError("secret text"))
    with running(rounds.run_once, interval=timedelta(milliseconds=1)) as loop:
        wait_until(lambda: rounds.count > 5)
        assert loop.problem == ""


def test_a_round_that_failed_is_made_up_for_long_before_the_next_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loops, "RETRY_INTERVAL", 0.01)
    rounds = Rounds(DatabaseUnavailable("away"), DatabaseUnavailable("away"))
    with running(rounds.run_once, interval=LONG):
        wait_until(lambda: rounds.count == 3)


def test_an_outage_however_long_is_no_problem_of_the_loop() -> None:
    rounds = Rounds(*[DatabaseUnavailable("away")] * 3 * ERROR_BUDGET)
    with running(rounds.run_once, interval=timedelta(milliseconds=1)) as loop:
        wait_until(lambda: rounds.count >= 2 * ERROR_BUDGET)
        assert loop.problem == ""


def test_a_loop_that_meets_unexpected_errors_only_asks_for_a_restart_and_names_no_text() -> None:
    rounds = Rounds(*[ValueError("secret text")] * 1000)
    with running(rounds.run_once, interval=timedelta(milliseconds=1)) as loop:
        wait_until(lambda: loop.problem == "the loop test fails every time")


def test_a_round_that_does_not_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LONGEST_STEP", 0.0)
    inside, go_on = threading.Event(), threading.Event()

    def run_once() -> None:
        inside.set()
        go_on.wait(10)

    with running(run_once) as loop:
        assert inside.wait(10)
        assert loop.problem == "the loop test is stuck"
        go_on.set()
        wait_until(lambda: loop.problem == "")


def test_a_round_of_many_steps_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LONGEST_STEP", 0.5)
    problems: list[str] = []

    def run_once() -> None:
        for _ in range(10):
            loops.note_progress()
            time.sleep(0.1)
            problems.append(loop.problem)

    loop = Loop("test", run_once, interval=timedelta(hours=1))
    loop.start()
    try:
        wait_until(lambda: len(problems) == 10)
    finally:
        loop.stop()
        loop.join(10)
    assert set(problems) == {""}


def test_the_apiserver_is_left_alone_for_as_long_as_it_asks() -> None:
    rounds = Rounds(TooManyRequests(300))
    with running(rounds.run_once, interval=timedelta(milliseconds=1)) as loop:
        wait_until(lambda: rounds.count == 1)
        loop.wake()
        loop.wake()
        assert rounds.count == 1
        loop.stop()
        loop.join(10)
