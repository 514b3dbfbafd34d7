"""The writes of a process that ends: tried for a moment, never waited for."""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from docgrid_core.errors import Busy, DatabaseUnavailable, DocGridError

LIMIT = 5.0
"""Seconds that a stopping worker gives to each of its last steps: a claim under way, its releases, STOPPED."""
_RETRY_INTERVAL = 0.2

T = TypeVar("T")

log = structlog.get_logger(__name__)


def try_to(write: Callable[[], T], failed: str) -> None:
    """Make one of the last writes; without the database, recovery does what it would have done."""
    give_up_at = time.monotonic() + LIMIT
    while True:
        try:
            write()
        except (DatabaseUnavailable, Busy) as error:
            if time.monotonic() < give_up_at:
                time.sleep(_RETRY_INTERVAL)
                continue
            log.warning(failed, error_code=error.code)
        except DocGridError as error:
            log.info(failed, error_code=error.code)
        return
