"""Setting up structured logs, once in each entry point.

Messages are constants; everything else is a field. Nothing here formats an exception: what a foreign error says
may hold text, rows or secrets.
"""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import TextIO

import structlog

from docgrid_core.settings import LogSettings


def configure_logging(settings: LogSettings, *, stream: TextIO = sys.stdout, **fields: object) -> None:
    """Send every log line to `stream`, as JSON or for a person; `fields` are in all of them."""
    level = logging.getLevelNamesMapping()[settings.level]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        else structlog.dev.ConsoleRenderer(colors=stream.isatty())
    )
    structlog.configure(
        processors=[
            _add_fields(fields),
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    # Libraries may put addresses and bodies into their own lines: only their warnings and errors are passed on,
    # by name and level, without the text.
    logging.basicConfig(level=logging.WARNING, handlers=[_LibraryHandler()], force=True)


def _add_fields(fields: Mapping[str, object]) -> structlog.typing.Processor:
    """Return a processor for the fields of the process: context variables would not reach its other threads."""

    def add(_logger: object, _method: str, event: MutableMapping[str, object]) -> Mapping[str, object]:
        return {**fields, **event}

    return add


class _LibraryHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger("library").log(record.levelno, "a library reports", logger=record.name)
