"""What is known of the cluster: the newest version seen of every object, from watches and from lists.

kopf's handlers and the resync fill it; reconciler, status and views read it. It also notices a watch that has
gone silent: a change that a list showed and the watch still has not told a whole resync later.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from docgrid_operator.kinds import Kind, Object, resource_version


@dataclass(slots=True)
class _Entry:
    object: Object
    watched: int  # newest resourceVersion that the watch told
    owed: int = 0  # the one that the last list showed, which the watch tells before the next list


class Observed:
    """A cache of objects by kind, namespace and name, shared by threads; its objects are never changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str, str], _Entry] = {}
        self._silent: frozenset[tuple[str, str]] = frozenset()

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the newest version seen of an object, or None."""
        with self._lock:
            entry = self._entries.get((kind.plural, namespace, name))
            return entry.object if entry else None

    def all(self, kind: Kind) -> list[Object]:
        """Return every object of a kind."""
        with self._lock:
            return [entry.object for key, entry in self._entries.items() if key[0] == kind.plural]

    def tell(self, kind: Kind, obj: Object, *, deleted: bool = False) -> None:
        """Note what the watch tells."""
        with self._lock:
            key = _cache_key(kind, obj)
            version = resource_version(obj)
            known = self._entries.get(key)
            if deleted:
                if known is not None and _same(known.object, obj):
                    del self._entries[key]
                return
            if known is None:
                self._entries[key] = _Entry(_slim(obj), version)
                return
            known.watched = max(known.watched, version)
            if version > resource_version(known.object):
                known.object = _slim(obj)

    def written(self, kind: Kind, obj: Object) -> None:
        """Note the apiserver's answer to a write of ours."""
        with self._lock:
            key = _cache_key(kind, obj)
            known = self._entries.get(key)
            if known is None:
                self._entries[key] = _Entry(_slim(obj), 0)
            elif resource_version(obj) > resource_version(known.object):
                known.object = _slim(obj)

    def listed(self, kind: Kind, namespace: str | None, objects: Iterable[Object], *, since: int) -> None:
        """Replace what is known of a kind in a namespace (None = everywhere) by a list.

        `since` is the newest resourceVersion that was known when the list was asked for: an object that is not
        in the list and not newer than that is gone. A watch that began anew does not tell of what went
        meanwhile, so only changes are held against it.
        """
        found = {_cache_key(kind, obj): obj for obj in objects}
        with self._lock:
            behind = False
            for key, obj in found.items():
                version = resource_version(obj)
                entry = self._entries.setdefault(key, _Entry(_slim(obj), 0))
                if version > resource_version(entry.object):
                    entry.object = _slim(obj)
                behind = behind or entry.watched < entry.owed
                entry.owed = version
            for key in [
                key for key in self._entries if key[0] == kind.plural and namespace in {None, key[1]}
            ]:
                if key not in found and resource_version(self._entries[key].object) <= since:
                    del self._entries[key]
            watch = (kind.plural, namespace or "")
            self._silent = self._silent | {watch} if behind else self._silent - {watch}

    def newest(self, kind: Kind) -> int:
        """Return the newest resourceVersion known of a kind, to be handed to `listed`."""
        with self._lock:
            versions = (
                resource_version(e.object) for key, e in self._entries.items() if key[0] == kind.plural
            )
            return max(versions, default=0)

    @property
    def silent(self) -> frozenset[tuple[str, str]]:
        """The watches (plural, namespace) that have not told, for a whole resync, what a list had shown."""
        return self._silent


def _cache_key(kind: Kind, obj: Object) -> tuple[str, str, str]:
    return kind.plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _same(known: Object, told: Object) -> bool:
    """Say whether a deletion is that of the object which is known, not of an older one with its name."""
    return bool(known["metadata"].get("uid") == told["metadata"].get("uid"))


def _slim(obj: Object) -> Object:
    """Leave out the bookkeeping of server-side apply: it is half of the memory and nobody reads it."""
    if "managedFields" not in obj["metadata"]:
        return obj
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "managedFields"}}
