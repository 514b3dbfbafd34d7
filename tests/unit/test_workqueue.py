"""The work queue: nothing is missed, nothing is raced, what fails comes back ever more rarely."""

import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docgrid_operator import workqueue
from docgrid_operator.workqueue import FIRST_BACKOFF, MIN_INTERVAL, WorkQueue


def take(queue: WorkQueue[str]) -> str:
    key = queue.take()
    assert key is not None
    return key


def test_a_key_that_is_added_often_is_worked_on_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(100):
        queue.add("a")
    queue.add("b")
    assert [take(queue), take(queue)] == ["a", "b"]
    assert len(queue) == 0


def test_a_key_that_is_added_while_it_is_worked_on_comes_again_and_never_twice_at_a_time() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert take(queue) == "a"
    queue.add("a")
    queue.add("b")
    assert take(queue) == "b"  # "a" is still being worked on
    began = time.monotonic()
    queue.done("a")
    assert take(queue) == "a"
    assert time.monotonic() - began >= MIN_INTERVAL


def test_a_key_that_fails_comes_back_after_its_back_off() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    began = time.monotonic()
    queue.retry(take(queue))
    queue.retry(take(queue))
    take(queue)
    assert time.monotonic() - began >= 3 * FIRST_BACKOFF  # once, then twice as long


def test_the_back_off_begins_anew_after_a_success() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    for _ in range(2):
        queue.retry(take(queue))
    queue.done(take(queue))
    queue.add("a")
    began = time.monotonic()
    queue.retry(take(queue))
    take(queue)
    assert FIRST_BACKOFF <= time.monotonic() - began < 3 * FIRST_BACKOFF


def test_an_event_brings_a_failing_key_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workqueue, "FIRST_BACKOFF", 60.0)
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    began = time.monotonic()
    queue.retry(take(queue))
    queue.add("a")
    assert take(queue) == "a"
    assert time.monotonic() - began < 30


def test_nothing_brings_a_key_forward_whose_rest_was_asked_for() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    began = time.monotonic()
    queue.retry(take(queue), after=2 * FIRST_BACKOFF)
    taker = threading.Thread(target=queue.take)
    taker.start()
    while taker.is_alive():  # it looks at each of them
        queue.add("a")
        taker.join(0.05)
    assert time.monotonic() - began >= 2 * FIRST_BACKOFF


def test_whoever_waits_is_let_go_when_the_queue_closes() -> None:
    queue: WorkQueue[str] = WorkQueue()
    answers: list[str | None] = []
    waiting = [threading.Thread(target=lambda: answers.append(queue.take())) for _ in range(3)]
    for thread in waiting:
        thread.start()
    queue.close()
    for thread in waiting:
        thread.join()
    assert answers == [None] * 3


@given(st.lists(st.sampled_from("abcd"), max_size=30))
def test_the_last_addition_of_every_key_is_followed_by_a_round(keys: list[str]) -> None:
    queue: WorkQueue[str] = WorkQueue()
    original, workqueue.MIN_INTERVAL = workqueue.MIN_INTERVAL, 0.0
    try:
        added: Counter[str] = Counter()
        seen: Counter[str] = Counter()
        for key in keys:
            queue.add(key)
            added[key] += 1
            if added.total() % 3 == 0:
                taken = take(queue)
                seen[taken] = added[taken]
                queue.done(taken)
        while len(queue):
            taken = take(queue)
            seen[taken] = added[taken]
            queue.done(taken)
        assert seen == added
    finally:
        workqueue.MIN_INTERVAL = original
