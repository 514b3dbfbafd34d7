"""Batches fill both limits and keep the order; lanes run side by side and report the first failure."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docgrid_pipeline.embeddings.batches import run_all, split


@given(
    texts=st.lists(st.text(max_size=12), max_size=30),
    max_count=st.integers(1, 7),
    max_code_points=st.integers(1, 30),
)
def test_batches_are_the_texts_in_order_and_each_is_as_long_as_the_limits_allow(
    texts: list[str], max_count: int, max_code_points: int
) -> None:
    batches = list(split(texts, max_count=max_count, max_code_points=max_code_points))

    assert [text for batch in batches for text in batch] == texts
    for number, batch in enumerate(batches):
        size = sum(map(len, batch))
        assert 1 <= len(batch) <= max_count
        assert size <= max_code_points or len(batch) == 1
        if number + 1 < len(batches):
            following = batches[number + 1][0]
            assert len(batch) == max_count or size + len(following) > max_code_points


def test_results_are_in_the_order_of_the_tasks_whatever_ends_first() -> None:
    second_done = threading.Event()

    def first() -> str:
        assert second_done.wait(10)
        return "first"

    def second() -> str:
        second_done.set()
        return "second"

    assert run_all([first, second], lanes=2) == ["first", "second"]


def test_one_lane_runs_in_the_calling_thread() -> None:
    assert run_all([threading.get_ident] * 3, lanes=1) == [threading.get_ident()] * 3


def test_no_task_is_no_result() -> None:
    assert run_all([], lanes=4) == []


@pytest.mark.parametrize("failure", [ValueError, MemoryError, SystemExit])
def test_after_a_failure_no_further_task_starts_and_the_failure_is_raised(
    failure: type[BaseException],
) -> None:
    started: list[int] = []

    def fail() -> None:
        started.append(0)
        raise failure

    with pytest.raises(failure):
        run_all([fail, lambda: started.append(1), lambda: started.append(2)], lanes=1)
    assert started == [0]


def test_a_failure_in_another_lane_waits_for_the_tasks_that_run() -> None:
    failed, ended = threading.Event(), threading.Event()

    def slow() -> None:
        assert failed.wait(10)
        ended.set()

    def fail() -> None:
        failed.set()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_all([slow, fail], lanes=2)
    assert ended.is_set()
