"""Ends calls that other threads wait in: a thread can not be canceled, but its socket can be shut down."""

import contextlib
import socket
import threading
import weakref
from typing import Any

_OPENED = frozenset({"connection.connect_tcp.complete", "connection.start_tls.complete"})


class OpenSockets:
    """The sockets of one HTTP client.

    `trace` is given to each request (httpx's `trace` extension) and sees every connection that is opened.
    """

    def __init__(self) -> None:
        self.closed = False
        self._lock = threading.Lock()
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """Remember the socket of a connection that was just opened; shut it down if it comes too late."""
        if event not in _OPENED:
            return
        opened = info["return_value"].get_extra_info("socket")
        with self._lock:
            self._sockets.add(opened)
            if self.closed:
                _shut_down(opened)

    def close(self) -> None:
        """Shut down every socket, those of later connections too: whoever waits on one gets an error."""
        with self._lock:
            self.closed = True
            for opened in self._sockets:
                _shut_down(opened)


def _shut_down(opened: socket.socket) -> None:
    # close() alone would leave a thread that waits in recv() waiting.
    with contextlib.suppress(OSError):
        opened.shutdown(socket.SHUT_RDWR)
