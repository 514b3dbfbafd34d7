"""Splits the texts of one document into requests, and runs several requests at once.

Used by the providers that talk to a server.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


def split(texts: Sequence[str], *, max_count: int, max_code_points: int) -> Iterator[Sequence[str]]:
    """Yield `texts` in order in runs as long as both limits allow; a text over the limit goes alone."""
    start, size = 0, 0
    for position, text in enumerate(texts):
        if position > start and (position - start == max_count or size + len(text) > max_code_points):
            yield texts[start:position]
            start, size = position, 0
        size += len(text)
    if start < len(texts):
        yield texts[start:]


def run_all(tasks: Sequence[Callable[[], T]], *, lanes: int) -> list[T]:
    """Run `tasks` in at most `lanes` threads, the caller's included; return the results in order.

    After the first failure no further task is started; it is raised when those that run have ended.
    """
    # Not a ThreadPoolExecutor: the interpreter waits for its threads at exit, and a worker must be able to
    # leave while a request is stuck.
    run = _Run(tasks)
    threads = [
        threading.Thread(target=run.work, name=f"embed-{lane}", daemon=True)
        for lane in range(1, min(lanes, len(tasks)))
    ]
    for thread in threads:
        thread.start()
    run.work()
    for thread in threads:
        thread.join()
    return run.results()


class _Run(Generic[T]):
    """The tasks of one call, taken by its threads one after the other."""

    def __init__(self, tasks: Sequence[Callable[[], T]]) -> None:
        self._tasks = iter(enumerate(tasks))
        self._lock = threading.Lock()
        self._results: dict[int, T] = {}
        self._failures: list[BaseException] = []

    def work(self) -> None:
        while (taken := self._take()) is not None:
            position, task = taken
            try:
                self._results[position] = task()
            except BaseException as error:  # noqa: BLE001 - carried over to the caller's thread
                self._failures.append(error)

    def results(self) -> list[T]:
        if self._failures:
            raise self._failures[0]
        return [self._results[position] for position in sorted(self._results)]

    def _take(self) -> tuple[int, Callable[[], T]] | None:
        with self._lock:
            return None if self._failures else next(self._tasks, None)
