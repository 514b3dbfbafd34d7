"""The environment of a container, as the kubelet makes it: values, references, `$(VAR)`; used by `pod_runner`."""

import base64
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from support.cluster.api import Api, Object
from support.cluster.errors import ApiError

_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_SOURCES = {"secret": "secrets", "configmap": "configmaps"}


class ConfigError(Exception):
    """The container can not be created: what it refers to is missing; the text is the kubelet's."""


class PodEnvironment:
    """Resolves what the containers of one pod refer to, anew each time that one is started."""

    def __init__(self, api: Api, pod: Object, *, address: str) -> None:
        self._api = api
        self._pod = pod
        self._address = address
        self._namespace = pod["metadata"]["namespace"]

    def of(self, container: Object) -> dict[str, str]:
        """Return the environment of a container; raises `ConfigError`."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            prefix = source.get("prefix", "")
            found |= {prefix + key: value for key, value in self._from_all(source)}
        for variable in container.get("env", []):
            value = self._value(variable, found)
            if value is not None:
                found[variable["name"]] = value
        return found

    def _value(self, variable: Object, known: Mapping[str, str]) -> str | None:
        source = variable.get("valueFrom")
        if source is None:
            return expand(variable.get("value", ""), known)
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"])
        if "secretKeyRef" in source:
            return self._key("secret", source["secretKeyRef"])
        if "configMapKeyRef" in source:
            return self._key("configmap", source["configMapKeyRef"])
        raise ConfigError(f"the stand-in node does not know {', '.join(source)}")

    def _key(self, kind: str, reference: Object) -> str | None:
        data = self._data(kind, reference)
        if data is None:
            return None
        key = reference["key"]
        if key not in data and not reference.get("optional"):
            label = {"secret": "Secret", "configmap": "ConfigMap"}[kind]
            raise ConfigError(f"couldn't find key {key} in {label} {self._namespace}/{reference['name']}")
        return data.get(key)

    def _from_all(self, source: Object) -> Iterator[tuple[str, str]]:
        for name, kind in (("secretRef", "secret"), ("configMapRef", "configmap")):
            if name in source:
                yield from (self._data(kind, source[name]) or {}).items()

    def _data(self, kind: str, reference: Object) -> Mapping[str, str] | None:
        """Return what a Secret or ConfigMap holds, None if it is missing and may be."""
        name = reference["name"]
        try:
            found = self._api.get(f"/api/v1/namespaces/{self._namespace}/{_SOURCES[kind]}/{name}")
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            if reference.get("optional"):
                return None
            raise ConfigError(f'{kind} "{name}" not found') from error
        data = found.get("data") or {}
        if kind == "configmap":
            return data
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def _field(self, path: str) -> str:
        given = {"status.podIP": self._address, "status.hostIP": "127.0.0.1"}
        if path in given:
            return given[path]
        if keyed := _KEYED.fullmatch(path):
            return str((self._pod["metadata"].get(keyed[1]) or {}).get(keyed[2], ""))
        value: Any = self._pod
        for part in path.split("."):
            value = value.get(part, "")
        return str(value)


def expand(text: str, known: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by a known value; `$$` is a dollar sign, an unknown name stays as it is written."""

    def replace(found: re.Match[str]) -> str:
        return "$" if found[1] is None else known.get(found[1], found[0])

    return _REFERENCE.sub(replace, text)


def command_line(container: Object, environment: Mapping[str, str]) -> Sequence[str]:
    """Return command and arguments of a container; an image's own are not known."""
    told = [*container.get("command", []), *container.get("args", [])]
    return [expand(part, environment) for part in told]


Resolve = Callable[[Object], dict[str, str]]
