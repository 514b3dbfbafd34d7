"""The end of kopf's tasks: whatever a watch does with its cancellation, the roots can close what they have opened."""

import asyncio
import contextlib

import pytest

from docgrid_operator import watches


class Roots:
    """A root task with a watch that takes its first cancellation for the end of a request, as kopf's may."""

    def __init__(self) -> None:
        self.canceled = 0
        self.closed = False

    async def watch(self) -> None:
        """Go on until the second cancellation."""
        while self.canceled < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.canceled += 1

    async def run(self) -> None:
        """End the watch when canceled, and close what is open after it."""
        watch = asyncio.create_task(self.watch())
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        watch.cancel()
        await asyncio.wait([watch])
        self.closed = True


def test_a_watch_that_goes_on_is_canceled_again_and_its_root_ends_in_peace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watches, "CANCEL_SECONDS", 0.01)

    async def end() -> Roots:
        roots = Roots()
        task = asyncio.create_task(roots.run())
        await asyncio.sleep(0)
        async with asyncio.timeout(30):  # in this task: every other one is canceled
            await watches._end([task])
        return roots

    roots = asyncio.run(end())
    assert roots.closed
    assert roots.canceled == 2
