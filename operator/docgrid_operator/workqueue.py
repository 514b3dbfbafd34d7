"""The work queue: which keys must be reconciled, each at most once at a time, failing ones ever more rarely.

Handlers and loops add keys, the reconciler's threads take them. Modelled on client-go's workqueue: a key added
while it is worked on is worked on again afterwards, so that no change is missed and none is raced.
"""

import heapq
import threading
import time
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

MIN_INTERVAL = 0.2
"""Seconds between two rounds of one key: what happens meanwhile is seen in one."""
FIRST_BACKOFF = 0.5
MAX_BACKOFF = 60.0


class WorkQueue(Generic[K]):
    """A set of due keys in the order in which they came due, shared by threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[K, float] = {}  # key → when, in monotonic seconds; the heap may hold older entries
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0
        self._working: set[K] = set()
        self._rested: dict[K, float] = {}  # key → before when it is not worked on again
        self._failures: dict[K, int] = {}
        self._closed = False

    def add(self, key: K, *, after: float = 0.0) -> None:
        """Have `key` worked on in `after` seconds, or earlier if it is due earlier already."""
        with self._changed:
            self._schedule(key, time.monotonic() + after)

    def take(self) -> K | None:
        """Wait for a key that is due and take it; None once the queue is closed."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                key = self._pop(now)
                if key is not None:
                    return key
                self._changed.wait(max(0.0, self._heap[0][0] - now) if self._heap else None)
            return None

    def done(self, key: K) -> None:
        """Say that the round succeeded: what failed before is forgotten."""
        with self._changed:
            self._failures.pop(key, None)
            self._release(key, rest=MIN_INTERVAL)

    def retry(self, key: K, *, after: float = 0.0) -> None:
        """Say that the round failed: the key comes back after its back-off, or earlier if it is added.

        But not before `after` seconds, which somebody asked for.
        """
        with self._changed:
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            backoff = min(FIRST_BACKOFF * 2 ** min(failures - 1, 16), MAX_BACKOFF)
            self._release(key, rest=max(MIN_INTERVAL, after))
            self._schedule(key, time.monotonic() + max(backoff, after))

    def close(self) -> None:
        """Let every `take` return None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        with self._changed:
            return len(self._due)

    def _schedule(self, key: K, when: float) -> None:
        if key in self._due and self._due[key] <= when:
            return
        self._due[key] = when
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, key))
        self._changed.notify()

    def _pop(self, now: float) -> K | None:
        while self._heap and self._heap[0][0] <= now:
            when, _, key = heapq.heappop(self._heap)
            if self._due.get(key) != when:  # it was brought forward, and taken since
                continue
            if key in self._working:  # `_release` puts it back
                self._due[key] = now
                continue
            rested = self._rested.get(key, 0.0)
            if rested > now:
                del self._due[key]
                self._schedule(key, rested)
                continue
            self._rested.pop(key, None)
            del self._due[key]
            self._working.add(key)
            return key
        return None

    def _release(self, key: K, *, rest: float) -> None:
        self._working.discard(key)
        now = time.monotonic()
        self._rested[key] = now + rest
        if len(self._rested) > 4096:
            self._rested = {key: until for key, until in self._rested.items() if until > now}
        if key in self._due:
            when = max(self._due.pop(key), now)
            self._schedule(key, when)
