"""`python -m docgrid_worker`: reads the settings, runs one worker, exits with a code that says how it ended.

0 drained · 75 fenced, or registration given up · 2 bad settings · 1 anything else.
"""

import os
import signal
import sys

import structlog

from docgrid_core.errors import DatabaseUnusable, DocGridError, SettingsError
from docgrid_core.logconfig import configure_logging
from docgrid_core.settings import load_group
from docgrid_worker.lifecycle import ExitCode, Lifecycle
from docgrid_worker.worker import Settings, Worker

log = structlog.get_logger(__name__)


def main() -> None:
    """Run one worker and end the process, without waiting for threads that are stuck in a call."""
    exit_code = _run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _run() -> ExitCode:
    try:
        settings = load_group(Settings)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return ExitCode.BAD_SETTINGS
    configure_logging(settings.log, worker=settings.worker.pod_name or settings.worker.name)
    lifecycle = Lifecycle()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: lifecycle.drain())
    try:
        return Worker(settings, lifecycle).run()
    except SettingsError as error:
        log.error("a setting is wrong", reason=str(error))
        return ExitCode.BAD_SETTINGS
    except DatabaseUnusable as error:
        log.error("the database can not be used", error_code=error.code, reason=error.message)
        return ExitCode.FENCED
    except DocGridError as error:
        log.error("registration given up", error_code=error.code, reason=error.message)
        return ExitCode.FENCED
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback, it may carry anything
        log.critical("unexpected error", error_type=type(error).__name__)
        return ExitCode.ERROR


if __name__ == "__main__":
    main()
