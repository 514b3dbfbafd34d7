"""The only client of the Kubernetes API besides kopf's watches: plain JSON in and out, errors translated here.

Every call has a time limit and is made once: who calls decides when to repeat it. No answer is interpreted
beyond its HTTP status.

::

    ClusterError
    ├── ApiUnavailable        no answer, or one of 5xx: ask again later
    ├── TooManyRequests       the apiserver asks for `retry_after` seconds of rest
    ├── Conflict              the object is not the one that was meant, or has changed
    ├── NotFound              no such object, namespace or kind
    ├── Forbidden             RBAC, quota or an admission policy says no
    └── Invalid               the object breaks a rule of its kind; `fields` names which
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote, urlencode

import urllib3
from kubernetes import client, config
from kubernetes.client.rest import RESTClientObject
from kubernetes.config.config_exception import ConfigException

from docgrid_core.errors import SettingsError
from docgrid_operator import metrics
from docgrid_operator.kinds import FIELD_MANAGER, Kind, Object

CONNECT_TIMEOUT = 5.0
READ_TIMEOUT = 20.0
PAGE = 500
"""Objects in one answer of a list."""

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"
_UNTYPED = "failed to create typed patch object"


class ClusterError(Exception):
    """A call to the apiserver did not do what was asked; `str()` carries no value of any object."""


class ApiUnavailable(ClusterError):
    """The apiserver gave no answer, or one that says nothing about the request."""


class TooManyRequests(ClusterError):
    """The apiserver is busy and asks for `retry_after` seconds of rest."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the apiserver asks for fewer requests")
        self.retry_after = retry_after


class NotFound(ClusterError):
    """There is no such object, namespace or kind."""


class Conflict(ClusterError):
    """The object is another one than was meant, or has changed meanwhile."""


class Forbidden(ClusterError):
    """RBAC, a quota or an admission policy does not allow it."""


class Invalid(ClusterError):
    """The object breaks a rule of its kind; `fields` are the paths, each with the kind of mistake."""

    def __init__(self, fields: list[str]) -> None:
        super().__init__(", ".join(fields) or "the object is not valid")
        self.fields = fields


class Cluster:
    """A connection pool to one apiserver, shared by the threads of the operator."""

    def __init__(self, configuration: client.Configuration, *, connections: int = 16) -> None:
        configuration.retries = False
        configuration.connection_pool_maxsize = connections
        self._configuration = configuration
        self._rest = RESTClientObject(configuration)
        self._auth_lock = threading.Lock()

    def close(self) -> None:
        """Close every idle connection."""
        self._rest.close()

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the object as it is now, or None."""
        try:
            return self._call("GET", _path(kind, namespace, name))
        except NotFound:
            return None

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> Iterator[Object]:
        """Yield every object of a kind as it is now, page by page; namespace None = all of them.

        Raises `Conflict` when the list became too old between two pages: begin again.
        """
        query = {"limit": str(PAGE), "labelSelector": labels}
        while True:
            page = self._call("GET", _path(kind, namespace), query)
            for item in page["items"]:
                yield {"apiVersion": kind.api_version, "kind": kind.name, **item}
            if not page["metadata"].get("continue"):
                return
            query["continue"] = page["metadata"]["continue"]

    def apply(self, kind: Kind, obj: Object) -> Object:
        """Write exactly these fields of an object, by server-side apply; create it if need be.

        With a `metadata.uid` only that very object is changed; raises `Conflict` if it is another one or gone.
        """
        return self._apply(_path(kind, obj["metadata"]["namespace"], obj["metadata"]["name"]), obj)

    def apply_status(self, kind: Kind, obj: Object) -> Object:
        """Write these fields of an object's status, by server-side apply."""
        return self._apply(_path(kind, obj["metadata"]["namespace"], obj["metadata"]["name"], "status"), obj)

    def merge(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        """Change an object by a JSON merge patch."""
        query = {"fieldManager": FIELD_MANAGER}
        return self._call("PATCH", _path(kind, namespace, name), query, body=patch, content_type=_MERGE)

    def merge_status(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        """Change an object's status by a JSON merge patch."""
        query = {"fieldManager": FIELD_MANAGER}
        path = _path(kind, namespace, name, "status")
        return self._call("PATCH", path, query, body=patch, content_type=_MERGE)

    def create(self, kind: Kind, obj: Object) -> Object:
        """Create an object; raises `Conflict` if its name is taken."""
        query = {"fieldManager": FIELD_MANAGER}
        return self._call("POST", _path(kind, obj["metadata"]["namespace"]), query, body=obj)

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str) -> None:
        """Delete the object of this uid; one that is gone already is fine, `Conflict` means it is another."""
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            self._call("DELETE", _path(kind, namespace, name), body=options)
        except NotFound:
            return

    def serves(self, kind: Kind) -> bool:
        """Say whether the apiserver knows the kind: its CustomResourceDefinition is installed."""
        try:
            served = self._call("GET", kind.root)
        except NotFound:
            return False
        return any(resource["name"] == kind.plural for resource in served["resources"])

    def _apply(self, path: str, obj: Object) -> Object:
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return self._call("PATCH", path, query, body=obj, content_type=_APPLY)

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Object | None = None,
        content_type: str = _JSON,
    ) -> Object:
        """Make one call and count how it ended."""
        outcome = "ok"
        try:
            return self._ask(method, path, query or {}, body, content_type)
        except ClusterError as error:
            outcome = type(error).__name__
            raise
        finally:
            metrics.API_REQUESTS.labels(verb=method, outcome=outcome).inc()

    def _ask(
        self, method: str, path: str, query: Mapping[str, str], body: Object | None, content_type: str
    ) -> Object:
        url = f"{self._configuration.host}{path}?{urlencode(query)}"
        headers = {"Accept": _JSON, "Content-Type": content_type, "User-Agent": FIELD_MANAGER, **self._auth()}
        # The client turns a body of a JSON type into text itself; YAML, of which JSON is a part, it wants as text.
        sent = json.dumps(body) if content_type == _APPLY else body
        try:
            response = self._rest.request(  # type: ignore[no-untyped-call]
                method, url, headers=headers, body=sent, _request_timeout=(CONNECT_TIMEOUT, READ_TIMEOUT)
            )
            answer = cast("bytes", response.read())
        except (client.ApiException, urllib3.exceptions.HTTPError) as error:
            raise ApiUnavailable(f"no answer from the apiserver ({type(error).__name__})") from None
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise _refusal(response.status, response.headers.get("Retry-After"), answer)
        return cast("Object", json.loads(answer))

    def _auth(self) -> dict[str, str]:
        with self._auth_lock:  # a token from a file or a plugin is read again when it is about to expire
            token = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        return {"authorization": token} if token else {}


def connect() -> Cluster:
    """Return a client for the cluster that this pod runs in, else for the current kubeconfig.

    Raises `SettingsError` if there is neither.
    """
    configuration = client.Configuration()
    try:
        config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
    except ConfigException:
        try:
            config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - the file may hold anything, and each thing fails in its own way
            raise SettingsError(
                "KUBECONFIG: no usable kubeconfig, and this is not a pod: set KUBECONFIG to one"
            ) from None
    return Cluster(configuration)


def _path(kind: Kind, namespace: str | None, name: str = "", subresource: str = "") -> str:
    parts = [kind.root]
    if namespace is not None:
        parts += ["namespaces", quote(namespace, safe="")]
    parts.append(kind.plural)
    parts += [quote(part, safe="") for part in (name, subresource) if part]
    return "/".join(parts)


def _refusal(status: int, retry_after: str | None, answer: bytes) -> ClusterError:
    """Translate an answer that is none: the only place that knows HTTP's numbers."""
    match status:
        case HTTPStatus.NOT_FOUND:
            return NotFound("no such object, namespace or kind")
        case HTTPStatus.CONFLICT | HTTPStatus.GONE:
            return Conflict("the object or the list has changed")
        case HTTPStatus.FORBIDDEN | HTTPStatus.UNAUTHORIZED:
            return Forbidden(_reason(answer))
        case HTTPStatus.TOO_MANY_REQUESTS:
            return TooManyRequests(_seconds(retry_after))
        case HTTPStatus.BAD_REQUEST | HTTPStatus.UNPROCESSABLE_ENTITY | HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return Invalid(_fields(answer))
        case HTTPStatus.INTERNAL_SERVER_ERROR if _UNTYPED in _message(answer):
            return Invalid(_untyped_fields(answer))
        case _:
            return ApiUnavailable(f"the apiserver answered {status}")


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after and retry_after.isdigit() else 1.0


def _status(answer: bytes) -> Mapping[str, Any]:
    try:
        status = json.loads(answer)
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}


def _message(answer: bytes) -> str:
    return str(_status(answer).get("message") or "")


def _reason(answer: bytes) -> str:
    """Return what the apiserver says of a request that is not allowed: names of users, kinds and quotas."""
    return (_message(answer) or "not allowed").replace("\n", " ")[:300]


def _untyped_fields(answer: bytes) -> list[str]:
    """Return the paths of fields that the kind does not have or has with another type, without their values.

    Server-side apply answers such an object with 500, though only another object will help.
    """
    paths = re.findall(r"(?<![\w\"'])((?:\.[A-Za-z][A-Za-z0-9]*|\[[^\]]*\])+): ", _message(answer))
    return [f"{path.lstrip('.')}: FieldNotOfItsKind" for path in dict.fromkeys(paths)][:10]


def _fields(answer: bytes) -> list[str]:
    """Return which fields are wrong and how, without their values, which may be anything."""
    details = _status(answer).get("details") or {}
    causes = details.get("causes") or []
    named = [f"{cause.get('field', '?')}: {cause.get('reason', 'invalid')}" for cause in causes]
    return list(dict.fromkeys(named))[:10]
