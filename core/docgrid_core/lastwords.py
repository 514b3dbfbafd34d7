"""Last words: the reason for which a process ends, left where the kubelet reads it, for a person to see.

The entries of worker and operator and `docgrid migrate` call it with the line that they also log or print. Kubernetes
shows it as the message of the container's end, and the operator in the conditions of an IndexingWorker.
"""

import os
from contextlib import suppress
from pathlib import Path

from docgrid_core.errors import SettingsError
from docgrid_core.settings import LogSettings, load

MOST = 1000
"""Bytes that are left at most: the kubelet takes some thousand."""


def leave_last_words(reason: str) -> None:
    """Write the reason into the file that the kubelet has made for it; outside of a pod there is none."""
    with suppress(OSError):  # the reason is on its way to the log: nothing else depends on this
        file = os.open(_termination_file(), os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)  # never made here
        with os.fdopen(file, "wb") as words:
            words.write(reason.encode(errors="replace")[:MOST])


def _termination_file() -> Path:
    try:
        return load(LogSettings).termination_file
    except SettingsError:  # of this section, which may well be what is to be told
        return LogSettings.model_construct().termination_file
