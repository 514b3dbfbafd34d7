"""kopf's watches: they feed `handlers` with what the apiserver tells, until a signal comes or one of them fails."""

import asyncio
import itertools
from collections.abc import Collection, Iterator
from typing import Any

import kopf

from docgrid_operator import handlers
from docgrid_operator.operator import Operator
from docgrid_operator.resync import WATCHED, label_selector

WATCH_SECONDS = 300
"""How long one watch request lasts before it is made anew."""
CANCEL_SECONDS = 3.0
"""After which a watch that goes on is canceled again; kopf's handlers have two to end."""


async def follow(operator: Operator, namespaces: Collection[str] | None) -> None:
    """Watch the namespaces, or all of them if None, until a signal comes; raises whatever ends a watch."""
    tasks = await kopf.spawn_tasks(
        registry=_build_registry(operator),
        settings=_settings(),
        standalone=True,
        clusterwide=namespaces is None,
        namespaces=namespaces or (),
    )
    ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    await _end(tasks)
    for task in ended:
        task.result()


async def _end(roots: Collection[asyncio.Task[None]]) -> None:
    """Cancel kopf's root tasks, and what they leave running until it has ended.

    `kopf.run_tasks` cancels each task once and waits for it without a limit. A watch that is canceled together with
    the waiter of its pause takes that for the end of a request, though, and makes the next one. The roots wait for
    their watches, and the last of them closes the connections: canceled again, they would leave those open.
    """
    for task in roots:
        task.cancel()
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        ended, left = await asyncio.wait(others, timeout=CANCEL_SECONDS)
        for task in ended:
            if not task.cancelled():
                task.exception()  # looked at: asyncio reports those that nobody did
        for task in left - set(roots):
            task.cancel()


def _build_registry(operator: Operator) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    handlers.register(
        registry,
        operator.observed,
        enqueue=operator.enqueue,
        pod_told=operator.pod_told,
        view_told=operator.view_told,
    )

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**arguments)

    return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = (
        False  # Events are ours to write: aggregated, and only those that a person needs
    )
    settings.scanning.disabled = True  # which namespaces and kinds are watched is known at the start
    settings.peering.standalone = True
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.client_timeout = WATCH_SECONDS + 30
    settings.watching.connect_timeout = 10
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = _Backoffs()
    for kind in WATCHED:
        if selector := label_selector(kind):
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector
    return settings


class _Backoffs:
    """Seconds between the tries of a watch: without an end, because an apiserver may be away for long."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.5, 1, 2)
        yield from itertools.repeat(3)
