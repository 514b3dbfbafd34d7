"""A small client of the apiserver for the harness itself: JSON in and out, one connection pool, watches as lines.

The stand-in node, the fixtures and tests use it; the operator has its own, and is tested with its own.
"""

import base64
import contextlib
import json
import ssl
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import urllib3

from support.cluster.errors import ApiError

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
_CONNECT_LIMIT = 5.0  # seconds
_READ_LIMIT = 20.0


class Api:
    """One user's connections to one apiserver; safe to use from several threads."""

    def __init__(self, server: str, *, authority: str, token: str) -> None:
        """Take the address, the authority's certificate (PEM) and the user's token; nothing is connected yet."""
        context = ssl.create_default_context(cadata=authority)
        self._server = server
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._pool = urllib3.PoolManager(maxsize=20, ssl_context=context, retries=False)

    @classmethod
    def of_kubeconfig(cls, path: Path) -> "Api":
        """Return a client of the user of a kubeconfig that `write_kubeconfig` wrote."""
        config = json.loads(path.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], authority=authority, token=user["token"])

    def close(self) -> None:
        """Close idle connections; one that carries a watch ends with its iterator."""
        self._pool.clear()

    def get(self, path: str, **query: str) -> Object:
        """Return the object or list at `path`, such as /api/v1/namespaces/default."""
        return self._call("GET", path, query=query)

    def create(self, path: str, body: Object) -> Object:
        """Create an object in the collection at `path`."""
        return self._call("POST", path, body)

    def patch(self, path: str, body: Object, *, kind: str = MERGE) -> Object:
        """Patch the object at `path`."""
        return self._call("PATCH", path, body, content_type=kind)

    def delete(self, path: str, body: Object | None = None) -> None:
        """Delete the object at `path`; one that is not there is deleted."""
        try:
            self._call("DELETE", path, body)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def watch(self, path: str, *, seconds: int, resource_version: str, **query: str) -> "Watch":
        """Watch what happens in the collection at `path` after a version, for `seconds` at most."""
        asked = {
            **query,
            "watch": "true",
            "resourceVersion": resource_version,  # without one, an etcd as old as Debian's may refuse it
            "timeoutSeconds": str(seconds),
            "allowWatchBookmarks": "true",
        }
        return Watch(self._request("GET", path, query=asked, stream_limit=seconds + _READ_LIMIT))

    def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        answer = self._request(method, path, body, query=query, content_type=content_type)
        parsed: Object = json.loads(answer.data)
        return parsed

    def _request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
        stream_limit: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        try:
            answer = self._pool.request(
                method,
                f"{self._server}{path}" + (f"?{urlencode(query)}" if query else ""),
                body=None if body is None else json.dumps(body),
                headers={**self._headers, "Content-Type": content_type},
                preload_content=stream_limit is None,
                timeout=urllib3.Timeout(connect=_CONNECT_LIMIT, read=stream_limit or _READ_LIMIT),
            )
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(0, type(error).__name__, f"{method} {path}: no answer") from error
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise _refusal(answer)
        return answer


class Watch:
    """An answer that goes on: yields (type, object); an event of type ERROR holds a Status."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer

    def __iter__(self) -> Iterator[tuple[str, Object]]:
        """Yield events until the time is over; raises `ApiError` when the connection breaks or is stopped."""
        try:
            for line in _lines(self._answer):
                event = json.loads(line)
                yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # ValueError: half a line, or what ssl says of a connection that another thread has just shut down.
            raise ApiError(0, type(error).__name__, "the watch broke") from error
        finally:
            self._answer.close()

    def stop(self) -> None:
        """End the iteration of another thread; one that is over stays so."""
        with contextlib.suppress(
            ValueError, RuntimeError, OSError
        ):  # what urllib3 says of a closed connection
            self._answer.shutdown()


def write_kubeconfig(
    path: Path, *, server: str, authority: Path, token: str, namespace: str = "default"
) -> None:
    """Write a kubeconfig (JSON, which is YAML) that needs no other file; only its owner may read it."""
    encoded = base64.b64encode(authority.read_bytes()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "docgrid-tests",
        "contexts": [
            {
                "name": "docgrid-tests",
                "context": {"cluster": "docgrid-tests", "user": "user", "namespace": namespace},
            }
        ],
        "clusters": [
            {"name": "docgrid-tests", "cluster": {"server": server, "certificate-authority-data": encoded}}
        ],
        "users": [{"name": "user", "user": {"token": token}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))


def _refusal(answer: urllib3.BaseHTTPResponse) -> ApiError:
    try:
        status = json.loads(answer.data)
    except ValueError:
        status = {}
    return ApiError(answer.status, status.get("reason", ""), status.get("message", ""))


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for block in answer.stream(None):
        *lines, rest = (rest + block).split(b"\n")
        yield from filter(None, lines)
