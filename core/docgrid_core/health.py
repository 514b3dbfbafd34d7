"""The HTTP endpoint of a long-running process: is it alive, is it ready, what does it count.

Started by the worker and the operator, each with probes of its own.
"""

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from docgrid_core.errors import SettingsError

Probe = Callable[[], str]
"""Returns what is wrong, or an empty string."""


class HealthServer:
    """Serves `/metrics` and a process's probes, by their paths, from threads of its own."""

    def __init__(self, host: str, port: int, *, setting: str, probes: Mapping[str, Probe]) -> None:
        """Bind the port; raises `SettingsError` when it is taken, which names `setting`."""

        class Handler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(HTTPStatus.OK, generate_latest(), CONTENT_TYPE_LATEST)
                elif (probe := probes.get(self.path)) is not None:
                    problem = probe()
                    status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
                    self._answer(status, f"{problem or 'ok'}\n".encode(), "text/plain; charset=utf-8")
                else:
                    self._answer(HTTPStatus.NOT_FOUND, b"not found\n", "text/plain; charset=utf-8")

            def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Probes come every few seconds: nothing is logged."""

        try:
            self._server = _Server((host, port), Handler)
        except OSError as error:
            raise SettingsError(
                f"{setting}={port}: can not listen on {host}:{port} ({error.strerror})"
            ) from None

    def start(self) -> None:
        """Answer from now on."""
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def stop(self) -> None:
        """Answer no more and free the port; to be called after `start`."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Ignore a caller that hangs up: the default prints a traceback."""
