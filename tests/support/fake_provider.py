"""A real HTTP server that speaks OpenAI's embeddings call and fails on request.

Every request takes the next of the planned faults; without one the answer is honest. Vectors depend on the
text alone, so a test can tell which text a vector belongs to.
"""

import hashlib
import json
import os
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

import numpy as np

DIMENSION = 8
MODEL = "fake-model"

Json = dict[str, Any]
Fault = Callable[["_Handler", Json], None]


def vector_of(text: str) -> list[float]:
    """Return the vector that the server gives to `text`; none of its numbers is zero."""
    return [(byte + 1) / 256 for byte in hashlib.sha256(text.encode()).digest()[:DIMENSION]]


def vectors_of(texts: list[str]) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Return what an embed call for `texts` has to return."""
    return np.array([vector_of(text) for text in texts], dtype=np.float32)


class FakeProvider:
    """The server; a context manager.

    `requests` are the bodies that it has got, `headers` their headers with names in lower case.
    """

    def __init__(self, listener: socket.socket | None = None) -> None:
        """Take a listening socket, if it is not to be one on loopback; the server closes it."""
        self.requests: list[Json] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self.arrived = threading.Semaphore(0)
        self.latency = 0.0  # seconds that each answer takes
        self.gate = threading.Event()
        self.gate.set()
        self._faults: deque[Fault] = deque()
        self._at_once = 0
        self._lock = threading.Lock()
        self._server = _Server(listener or socket.create_server(("127.0.0.1", 0)))
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="fake-provider")

    @property
    def base_url(self) -> str:
        """The root of the server, without /v1."""
        host, port = self._server.socket.getsockname()
        return f"http://{host}:{port}"

    def plan(self, *faults: Fault) -> None:
        """Let the next requests meet these faults, one each."""
        self._faults.extend(faults)

    def reset(self) -> None:
        """Answer at once and honestly again."""
        self._faults.clear()
        self.latency = 0.0
        self.gate.set()

    def wait_for_requests(self, count: int) -> None:
        """Return once `count` further requests have arrived; while `gate` is clear they wait there."""
        for _ in range(count):
            assert self.arrived.acquire(timeout=30), "the request did not arrive"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()  # waits for the handlers
        self._thread.join()

    def take(self, request: Json, headers: dict[str, str]) -> Fault:
        """Record a request and say how to answer it."""
        with self._lock:
            self.requests.append(request)
            self.headers.append(headers)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            fault = self._faults.popleft() if self._faults else answer()
        self.arrived.release()
        return fault

    def leave(self) -> None:
        """Count a request as answered."""
        with self._lock:
            self._at_once -= 1


def answer(change: Callable[[Json], object] = lambda _: None) -> Fault:
    """Answer honestly, after `change` has been made to the answer."""

    def fault(handler: "_Handler", request: Json) -> None:
        data = [{"index": i, "embedding": vector_of(text)} for i, text in enumerate(request["input"])]
        body: Json = {"object": "list", "model": request["model"], "data": data}
        change(body)
        handler.send(200, json.dumps(body).encode())

    return fault


def status(code: int, **headers: str) -> Fault:
    """Answer with an error status; its body repeats the request, as some servers do."""

    def fault(handler: "_Handler", request: Json) -> None:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        handler.send(code, json.dumps({"error": request}).encode(), **fields)

    return fault


def raw(body: bytes) -> Fault:
    """Answer 200 with any bytes."""

    def fault(handler: "_Handler", request: Json) -> None:
        handler.send(200, body)

    return fault


def reset_midway(handler: "_Handler", request: Json) -> None:
    """Send half an answer, then reset the connection."""
    handler.begin(200, length=1000)
    handler.wfile.write(b'{"data": [')
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    os.close(handler.connection.detach())  # at once: the server would say goodbye first


def cut_midway(handler: "_Handler", request: Json) -> None:
    """Send half an answer, then end the connection in good order."""
    handler.begin(200, length=1000)
    handler.wfile.write(b'{"data": [')
    handler.close_connection = True


def hang(handler: "_Handler", request: Json) -> None:
    """Answer nothing until the client has gone."""
    handler.connection.settimeout(30)
    handler.connection.recv(1)
    handler.close_connection = True


def drip(handler: "_Handler", request: Json) -> None:
    """Send a byte every 20 ms until the client has gone."""
    handler.begin(200, length=1_000_000)
    handler.close_connection = True
    handler.connection.settimeout(0.02)
    while True:
        try:
            if not handler.connection.recv(1):
                return
        except TimeoutError:
            handler.connection.sendall(b" ")


class _Server(ThreadingHTTPServer):
    owner: FakeProvider
    daemon_threads = False  # so that closing the server waits for its handlers
    block_on_close = True

    def __init__(self, listener: socket.socket) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients of this server hang up on purpose."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        owner = self.server.owner
        fault = owner.take(
            {**request, "path": self.path}, {name.lower(): value for name, value in self.headers.items()}
        )
        try:
            owner.gate.wait(30)
            time.sleep(owner.latency)
            fault(self, request)
        finally:
            owner.leave()

    def send(self, code: int, body: bytes, **headers: str) -> None:
        self.begin(code, length=len(body), **headers)
        self.wfile.write(body)

    def begin(self, code: int, *, length: int, **headers: str) -> None:
        self.send_response(code)
        self.send_header("content-length", str(length))
        self.send_header("content-type", "application/json")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""
