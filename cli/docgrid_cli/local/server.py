"""What PostgreSQL, the S3 server and the model server of the local stack have in common: start, health, stop.

The supervisor and the tests drive servers through this class; each server's module fills in the rest.
"""

import http
import http.client
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from docgrid_cli.local.errors import LocalStackError
from docgrid_cli.local.ports import LOOPBACK, is_free
from docgrid_cli.local.process import ChildProcess, Launch, last_line

_POLL = 0.02  # seconds between two looks at a starting server


class Server(ABC):
    """A server on loopback that is one child process; restartable, for one caller at a time."""

    name: ClassVar[str]
    start_limit: ClassVar[float] = 30.0  # seconds until it must answer
    stop_limit: ClassVar[float] = 10.0  # seconds between the stop signal and SIGKILL
    retry_limit: ClassVar[float] = 0.0  # seconds in which a start that fails is tried again

    def __init__(self, *, port: int) -> None:
        self.port = port
        self.child: ChildProcess | None = None
        self.mark: Mapping[str, str] = {}  # added to the process's environment

    @abstractmethod
    def answers(self) -> bool:
        """Tell within about two seconds whether the server reacts to a client."""

    @abstractmethod
    def _prepare(self) -> None:
        """Make the data folder ready; runs before every start."""

    @abstractmethod
    def _launch(self) -> Launch:
        """Return how the process is started."""

    def is_ready(self) -> bool:
        """Tell whether a started server has finished starting."""
        return self.answers()

    def start(
        self, *, on_end: Callable[[], None] | None = None, abort: threading.Event | None = None
    ) -> None:
        """Start the server and return once it is ready.

        `on_end` is called when its process has ended, whenever that is. Raises `LocalStackError`, also when
        `abort` is set meanwhile.
        """
        abort = abort or threading.Event()
        give_up = time.monotonic() + self.retry_limit
        while True:
            self._prepare()
            self._require_free_port()
            try:
                self._start_once(on_end, abort)
            except LocalStackError:
                if time.monotonic() >= give_up or abort.wait(0.2):
                    raise
            else:
                return

    def stop(self) -> None:
        """End the server, its own way first; without one running this does nothing."""
        if self.child is not None:
            self.child.stop(limit=self.stop_limit)
            self.child = None

    def _require_free_port(self) -> None:
        if not is_free(self.port):
            raise LocalStackError(f"{self.name}: port {self.port} on 127.0.0.1 is taken by another program")

    def _start_once(self, on_end: Callable[[], None] | None, abort: threading.Event) -> None:
        launch = self._launch()
        marked = replace(launch, environment={**launch.environment, **self.mark})
        child = self.child = ChildProcess(marked, on_end=on_end)
        limit = time.monotonic() + self.start_limit
        while not child.wait(_POLL):
            if self.is_ready():
                return
            if abort.is_set():
                self.stop()
                raise LocalStackError(f"{self.name}: the start was broken off")
            if time.monotonic() > limit:
                child.kill()
                raise LocalStackError(
                    f"{self.name} does not answer after {self.start_limit:.0f} s: see {child.log}"
                )
        raise LocalStackError(f"{self.name} ended at once: {last_line(child.log) or f'see {child.log}'}")


def answers_http(port: int, path: str) -> bool:
    """Tell whether an HTTP server on 127.0.0.1:`port` answers 200 for `path` within two seconds."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
