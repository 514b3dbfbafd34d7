"""A TCP proxy between a worker and one of its servers: the network that a test can take away.

Clients are given `port`; what they send goes to the server unchanged until the test cuts, refuses,
stalls or swallows.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

_PART = 65_536


class Proxy:
    """A context manager that forwards connections to `host`:`port` of a server."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_swallowed: Callable[[bytes], bool] | None = None
        self.swallowed = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @property
    def endpoint(self) -> str:
        """`host:port` for the clients."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._accept()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.flow()
        self.refuse()

    def cut(self) -> None:
        """End every connection that is open now; new ones are served."""
        with self._lock:
            for connection in self._open:
                _shut_down(connection)

    def refuse(self) -> None:
        """End every connection and refuse new ones, as a server that is not there."""
        _shut_down(self._listener)  # wakes accept()
        self._thread.join()
        self._listener.close()
        self.cut()

    def serve(self) -> None:
        """Serve again, on the same port, after `refuse`."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accept()

    def stall(self) -> None:
        """Hold back everything that is sent, and keep every connection open."""
        self._flowing.clear()

    def flow(self) -> None:
        """Pass on what was held back, and everything else again."""
        self._flowing.set()

    def swallow_answer_to(self, is_swallowed: Callable[[bytes], bool]) -> None:
        """Let the next request that `is_swallowed` reach the server, but not its answer the client.

        The connection is cut instead; `swallowed` is set then.
        """
        self._is_swallowed = is_swallowed

    def _accept(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}")
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server, timeout=5)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._open |= {client, server}
            cut_next = threading.Event()
            for source, target, look in (
                (client, server, self._look_at_request(cut_next)),
                (server, client, self._look_at_answer(cut_next)),
            ):
                threading.Thread(target=self._pump, args=(source, target, look), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, look: Callable[[bytes], bool]) -> None:
        with contextlib.suppress(OSError):
            while (part := source.recv(_PART)) and look(part):
                self._flowing.wait()
                target.sendall(part)
        for end in (source, target):
            _shut_down(end)
        with self._lock:
            self._open.discard(source)
        source.close()

    def _look_at_request(self, cut_next: threading.Event) -> Callable[[bytes], bool]:
        def look(part: bytes) -> bool:
            if self._is_swallowed is not None and self._is_swallowed(part):
                self._is_swallowed = None
                cut_next.set()
            return True

        return look

    def _look_at_answer(self, cut_next: threading.Event) -> Callable[[bytes], bool]:
        def look(part: bytes) -> bool:
            if cut_next.is_set():
                self.swallowed.set()
            return not cut_next.is_set()

        return look


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
