"""`python -m docgrid_worker`: reads the settings, runs one worker, exits with a code that says how it ended.

0 drained · 75 fenced, or registration given up · 2 bad settings · 1 anything else.
"""

import os
import signal
import sys
import threading

import structlog

from docgrid_core.errors import DatabaseUnusable, DocGridError, SettingsError
from docgrid_core.lastwords import leave_last_words
from docgrid_core.logconfig import configure_logging
from docgrid_core.settings import load_group
from docgrid_worker.lifecycle import ExitCode, Lifecycle
from docgrid_worker.settings import Settings
from docgrid_worker.worker import Worker

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
        leave_last_words(str(error))
        return ExitCode.BAD_SETTINGS
    configure_logging(settings.log, worker=settings.worker.pod_name or settings.worker.name)
    lifecycle = Lifecycle()
    _watch_signals(lifecycle)
    _watch_threads(lifecycle)
    try:
        return Worker(settings, lifecycle).run()
    except SettingsError as error:
        log.error("a setting is wrong", reason=str(error))
        leave_last_words(str(error))
        return ExitCode.BAD_SETTINGS
    except DatabaseUnusable as error:
        log.error("the database can not be used", error_code=error.code, reason=error.message)
        leave_last_words(str(error))
        return ExitCode.FENCED
    except DocGridError as error:
        log.error("registration given up", error_code=error.code, reason=error.message)
        leave_last_words(str(error))
        return ExitCode.FENCED
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback, it may carry anything
        log.critical("unexpected error", error_type=type(error).__name__)
        return ExitCode.ERROR


def _watch_signals(lifecycle: Lifecycle) -> None:
    """Turn SIGTERM and SIGINT into a drain, in a thread: a signal handler must not touch locks.

    Not by sigwait: a thread of a native library (OpenBLAS starts some at its import) does not block the signal,
    and its default action there would end the process.
    """
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # the byte in the pipe is what counts

    def watch() -> None:
        while os.read(read_end, 1):
            lifecycle.on_signal()

    threading.Thread(target=watch, name="signals", daemon=True).start()


def _watch_threads(lifecycle: Lifecycle) -> None:
    """End the process when one of its threads dies: a worker without a heartbeat or a poller is none."""

    def died(args: threading.ExceptHookArgs) -> None:
        name = "" if args.thread is None else args.thread.name
        lifecycle.go_silent(ExitCode.ERROR)
        log.critical("a thread died", thread=name, error_type=args.exc_type.__name__)

    threading.excepthook = died


if __name__ == "__main__":
    main()
