"""What a person sees of an error, and with which code the process exits: the edge of the command line.

`main` runs every command through `run_reporting`.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum

import typer
from typer.exceptions import TyperException

from docgrid_core.errors import DocGridError, FaultError, SettingsError


class ExitCode(IntEnum):
    """How a command ended. The last two are what a shell reports of a program ended by SIGINT or SIGPIPE."""

    OK = 0
    FAILED = 1
    USAGE = 2
    INTERRUPTED = 130
    BROKEN_PIPE = 141


def run_reporting(command: Callable[[], int], *, debug: bool) -> int:
    """Run `command` and return its exit code; an error becomes one line on stderr (`debug`: a few more)."""
    try:
        code = command()
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return _say("", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        return _end_unread()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer ends the process itself then
            return _end_unread()
        raise
    except TyperException as error:
        return _say(_explain_usage(error), ExitCode.USAGE)
    except DocGridError as error:
        code = ExitCode.USAGE if isinstance(error, SettingsError) else ExitCode.FAILED
        return _say(str(error), code, error if debug else None)
    except Exception as error:  # noqa: BLE001 - a fault of ours: no traceback, its values may be anything
        hint = "" if debug else ": run it again with --debug"
        text = f"COMMON-006: an unexpected error ({type(error).__name__}){hint}"
        return _say(text, ExitCode.FAILED, error if debug else None)
    return code


def _say(text: str, code: int, error: Exception | None = None) -> int:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _end_unread()
    with contextlib.suppress(BrokenPipeError):
        if text:
            print(text, file=sys.stderr)
        if error is not None:
            _say_more(error)
    return code


def _say_more(error: Exception) -> None:
    """Print class, detail and lines of code; never the message of a foreign error, which may hold a row."""
    print(f"  class: {type(error).__module__}.{type(error).__qualname__}", file=sys.stderr)
    if isinstance(error, FaultError) and error.detail:
        print(f"  detail: {error.detail}", file=sys.stderr)
    for frame in traceback.extract_tb(error.__traceback__):
        if "docgrid_" not in frame.filename:
            continue
        print(f"  {frame.filename}:{frame.lineno} in {frame.name}", file=sys.stderr)


def _explain_usage(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    text = error.format_message()
    if context is None or text.startswith("Usage:"):  # a group without a command: the text is its help
        return text
    message = " ".join(text.replace("Value error, ", "").split())
    return f"{message} (see `{context.command_path} --help`)"


def _end_unread() -> int:
    """Let what is left in the buffer go nowhere: whoever read it is gone."""
    sys.stdout = sys.__stdout__  # typer may have wrapped it
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    return ExitCode.BROKEN_PIPE
