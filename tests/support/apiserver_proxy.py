"""A proxy in front of a real apiserver that can give any of its answers a fault of HTTP: the operator's fault tests.

It speaks plain HTTP to its client, so that it sees what is asked, and passes everything on to the real apiserver.
Faults below HTTP (refused, cut and stalled connections) are `support.proxy`'s.
"""

import contextlib
import http.client
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

_OF_A_CONNECTION = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: what is not sent is dropped, and the other side told
_PART = 65_536


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for."""

    method: str
    path: str
    query: Mapping[str, list[str]] = field(default_factory=dict)
    at: float = field(default_factory=time.monotonic)
    """monotonic seconds"""

    @property
    def is_watch(self) -> bool:
        """Tell whether the answer goes on."""
        return "watch" in self.query

    @property
    def is_write(self) -> bool:
        """Tell whether something is to be changed."""
        return self.method != "GET"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that the apiserver never sees the question of."""

    status: HTTPStatus
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Torn:
    """The apiserver does what it is asked, its answer breaks off by a reset: a watch's in its first event."""


@dataclass(frozen=True, slots=True)
class Silenced:
    """A watch that begins and then says nothing, whatever happens, and does not end."""


@dataclass(frozen=True, slots=True)
class Says:
    """A watch that says one line of its own, and ends."""

    line: bytes


Fault = Refusal | Torn | Silenced | Says


class ApiServerProxy:
    """A context manager; its client is given `server` as the address of the apiserver."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        self._faults: list[tuple[Callable[[Request], bool], Fault]] = []
        self.asked: list[tuple[Request, Fault | None]] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE
        self._listener = _Listener(self)
        self.server = f"http://127.0.0.1:{self._listener.server_port}"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._listener.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._end_connections()
        self._listener.server_close()  # waits for the threads

    def inject(self, applies: Callable[[Request], bool], fault: Fault) -> None:
        """Give this fault to every request from now on that `applies` accepts; all connections begin anew."""
        self._faults.append((applies, fault))
        self._end_connections()

    def heal(self) -> None:
        """Pass on everything again; all connections begin anew."""
        self._faults.clear()
        self._end_connections()

    def faulty(self) -> list[Request]:
        """Return the requests that met a fault."""
        return [request for request, fault in self.asked if fault is not None]

    def decide(self, request: Request) -> tuple[Fault | None, threading.Event]:
        """Note a request; return its fault, and the event that ends an answer which does not end by itself."""
        fault = next((fault for applies, fault in self._faults if applies(request)), None)
        self.asked.append((request, fault))
        return fault, self._changed

    @contextlib.contextmanager
    def tracked(self, connection: socket.socket) -> Iterator[None]:
        """Have a connection ended when all are."""
        with self._lock:
            self._open.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._open.discard(connection)

    @contextlib.contextmanager
    def forwarded(
        self, asked: BaseHTTPRequestHandler, headers: Mapping[str, str], body: bytes
    ) -> Iterator[http.client.HTTPResponse]:
        """Ask the real apiserver; yield its answer, not read yet."""
        host, port = self._upstream.hostname or "", self._upstream.port
        connection = http.client.HTTPSConnection(host, port, context=self._context, timeout=600)
        with contextlib.closing(connection):
            connection.connect()
            with self.tracked(connection.sock):
                connection.request(asked.command, asked.path, body=body, headers=dict(headers))
                with connection.getresponse() as answer:
                    yield answer

    def _end_connections(self) -> None:
        self._changed.set()
        self._changed = threading.Event()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 100

    def __init__(self, proxy: ApiServerProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, *_: Any) -> None:
        """Say nothing of connections that end: faults end them."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def handle(self) -> None:
        with self.server.proxy.tracked(self.connection):
            super().handle()

    def do_GET(self) -> None:
        proxy = self.server.proxy
        address = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault, over = proxy.decide(Request(self.command, address.path, parse_qs(address.query)))
        match fault:
            case Refusal(status, headers):
                self._begin(status, {**headers, "Content-Length": "0"})
            case Says(line):
                self._begin(HTTPStatus.OK, {"Connection": "close"})
                self.wfile.write(line + b"\n")
            case Silenced():
                self._begin(HTTPStatus.OK, {"Connection": "close"})
                over.wait()
            case _:
                headers = {k: v for k, v in self.headers.items() if k.lower() not in _OF_A_CONNECTION}
                with proxy.forwarded(self, headers, body) as answer:
                    self._pass_on(answer, torn=fault is not None)

    do_POST = do_PATCH = do_PUT = do_DELETE = do_GET  # noqa: N815 - the names that http.server looks for

    def _pass_on(self, answer: http.client.HTTPResponse, *, torn: bool) -> None:
        headers = {k: v for k, v in answer.getheaders() if k.lower() not in _OF_A_CONNECTION}
        if torn:
            self._begin(answer.status, {**headers, "Transfer-Encoding": "chunked"})
            self._tear(answer.read1(_PART))
        elif answer.chunked:
            self._begin(answer.status, {**headers, "Connection": "close"})
            while part := answer.read1(_PART):
                self.wfile.write(part)
        else:
            content = answer.read()
            self._begin(answer.status, {**headers, "Content-Length": str(len(content))})
            self.wfile.write(content)

    def _tear(self, part: bytes) -> None:
        """Announce a part, send half of it, and reset the connection."""
        self.wfile.write(b"%x\r\n" % len(part) + part[: len(part) // 2])
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close_connection = True

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
