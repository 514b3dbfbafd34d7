"""A server that plays a broken S3: it answers every request with the same bytes, whole or not at all."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class BrokenServer:
    """A context manager; `answer` goes to each connection before it is closed, None to nobody. Counts them."""

    def __init__(self, answer: bytes | None) -> None:
        self.connections = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="broken-server")

    @property
    def endpoint(self) -> str:
        """`host:port`."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with contextlib.ExitStack() as open_connections:
            while not self._ended.is_set():
                try:
                    connection, _ = self._listener.accept()
                except OSError:
                    return
                open_connections.enter_context(connection)
                self.connections += 1
                connection.settimeout(5)
                connection.recv(65536)
                if self._answer is not None:
                    connection.sendall(self._answer)
                    connection.shutdown(socket.SHUT_WR)
