"""Running `docgrid` in tests: in this process for what is printed, as a process of its own where signals matter."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from docgrid_cli.main import run
from docgrid_core.settings import DatabaseSettings, StorageSettings


@dataclass(frozen=True)
class Answer:
    """What one command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The result of `-o json`."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The cells of a table, without its header; cells with spaces come apart."""
        return [line.split() for line in self.out.splitlines()[1:]]


class Cli:
    """`docgrid` with the environment of one installation, and of nothing else."""

    def __init__(self, environment: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> None:
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("DOCGRID_D")},
            **environment,
        }
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Answer:
        """Run a command in this process."""
        self._capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            for key in os.environ.keys() - self.environment.keys():
                patch.delenv(key)
            for key, value in self.environment.items():
                patch.setenv(key, value)
            # It would bind the loggers of this process to the output of this test.
            patch.setattr("docgrid_core.logconfig.configure_logging", lambda *_args, **_kwargs: None)
            code = run(arguments)
        out, err = self._capsys.readouterr()
        return Answer(code, out, err)

    @contextmanager
    def start(self, *arguments: str, **options: Any) -> Iterator["subprocess.Popen[str]"]:
        """Run a command as a process; one that has not ended with the `with` block is killed."""
        command = [sys.executable, "-m", "docgrid_cli.main", *arguments]
        streams = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE) | {"stdin": subprocess.DEVNULL}
        with subprocess.Popen(command, env=self.environment, text=True, **{**streams, **options}) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *arguments: str, limit: float = 60) -> Answer:
        """Run a command as a process of its own, for at most `limit` seconds."""
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=limit)
        return Answer(process.returncode, out, err)


def environment_of(
    database: DatabaseSettings, storage: StorageSettings | None = None, **others: str
) -> dict[str, str]:
    """Return the settings of an installation; `others` are the ends of further keys."""
    found = {"DOCGRID_DATABASE_URL": database.url.get_secret_value()}
    if storage is not None:
        found |= {
            "DOCGRID_STORAGE_ENDPOINT": storage.endpoint,
            "DOCGRID_STORAGE_SECURE": "false",
            "DOCGRID_STORAGE_ACCESS_KEY": storage.access_key.get_secret_value(),
            "DOCGRID_STORAGE_SECRET_KEY": storage.secret_key.get_secret_value(),
            "DOCGRID_STORAGE_BUCKET": storage.bucket,
        }
    return found | {f"DOCGRID_{key.upper()}": value for key, value in others.items()}
