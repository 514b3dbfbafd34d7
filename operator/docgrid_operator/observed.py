"""What is known of the cluster: the newest version seen of every object, from watches and from lists.

kopf's handlers and the resync fill it; reconciler, status and views read it. It also notices a watch that has
gone silent: a change that a list showed and the watch still has not told a whole resync later.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from docgrid_operator.kinds import POOL_LABEL, Key, Kind, Object, resource_version

_CacheKey = tuple[str, str, str]  # plural, namespace, name


@dataclass(slots=True)
class _Entry:
    object: Object
    watched: int  # newest resourceVersion that the watch told
    owed: int = 0  # the one that the last list showed, which the watch tells before the next list


class Observed:
    """A cache of objects by kind, namespace and name, shared by threads; its objects are never changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[_CacheKey, _Entry] = {}
        self._pools: dict[tuple[str, Key], set[str]] = {}  # which objects carry a pool's label
        self._silent: frozenset[tuple[str, str]] = frozenset()
        # By kind, the uids of what went since its last list began: that list may still show them.
        self._gone: dict[str, set[str]] = {}

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the newest version seen of an object, or None."""
        with self._lock:
            entry = self._entries.get((kind.plural, namespace, name))
            return entry.object if entry else None

    def all(self, kind: Kind) -> list[Object]:
        """Return every object of a kind."""
        with self._lock:
            return [entry.object for key, entry in self._entries.items() if key[0] == kind.plural]

    def of_pool(self, kind: Kind, pool: Key) -> list[Object]:
        """Return the objects of a kind that carry the label of a pool."""
        with self._lock:
            names = self._pools.get((kind.plural, pool), ())
            return [self._entries[kind.plural, pool.namespace, name].object for name in sorted(names)]

    def tell(self, kind: Kind, obj: Object, *, deleted: bool = False) -> bool:
        """Note what the watch tells; say whether it is news: not our own write, nor what a list has shown."""
        with self._lock:
            key = _cache_key(kind, obj)
            known = self._entries.get(key)
            if deleted:
                self._gone.setdefault(kind.plural, set()).add(obj["metadata"]["uid"])
                if known is not None and _same(known.object, obj):
                    self._drop(key)
                return True
            news = known is None or resource_version(known.object) < resource_version(obj)
            self._gone.get(kind.plural, set()).discard(obj["metadata"]["uid"])  # it had only lost its label
            if entry := self._keep(key, obj):
                entry.watched = resource_version(obj)
            return news

    def written(self, kind: Kind, obj: Object) -> None:
        """Note the apiserver's answer to a write of ours."""
        with self._lock:
            self._keep(_cache_key(kind, obj), obj)

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
                entry = self._keep(key, obj)
                if entry is None:
                    continue
                behind = behind or entry.watched < entry.owed
                entry.owed = resource_version(obj)
            for key in [
                key for key in self._entries if key[0] == kind.plural and namespace in {None, key[1]}
            ]:
                if key not in found and resource_version(self._entries[key].object) <= since:
                    self._drop(key)
            watch = (kind.plural, namespace or "")
            self._silent = self._silent | {watch} if behind else self._silent - {watch}

    def begin_list(self, kind: Kind) -> int:
        """Note that a list of a kind begins; return the newest resourceVersion known, to be handed to `listed`."""
        with self._lock:
            self._gone.pop(kind.plural, None)
            versions = (
                resource_version(e.object) for key, e in self._entries.items() if key[0] == kind.plural
            )
            return max(versions, default=0)

    @property
    def silent(self) -> frozenset[tuple[str, str]]:
        """The watches (plural, namespace) that have not told, for a whole resync, what a list had shown."""
        return self._silent

    def _keep(self, key: _CacheKey, obj: Object) -> _Entry | None:
        """Take in a version of an object; None if the object is known to be gone: it is an answer from before."""
        if obj["metadata"].get("uid") in self._gone.get(key[0], ()):
            return None
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(_slim(obj), watched=0)
        elif resource_version(obj) > resource_version(entry.object):
            self._pools.get(_pool_key(key, entry.object), set()).discard(key[2])
            entry.object = _slim(obj)
        else:
            return entry
        self._pools.setdefault(_pool_key(key, obj), set()).add(key[2])
        return entry

    def _drop(self, key: _CacheKey) -> None:
        pool = _pool_key(key, self._entries.pop(key).object)
        self._pools[pool].discard(key[2])
        if not self._pools[pool]:
            del self._pools[pool]


def _cache_key(kind: Kind, obj: Object) -> _CacheKey:
    return kind.plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def _pool_key(key: _CacheKey, obj: Object) -> tuple[str, Key]:
    labels = obj["metadata"].get("labels") or {}
    return key[0], Key(key[1], str(labels.get(POOL_LABEL) or ""))


def _same(known: Object, told: Object) -> bool:
    """Say whether a deletion is that of the object which is known, not of an older one with its name."""
    return bool(known["metadata"].get("uid") == told["metadata"].get("uid"))


def _slim(obj: Object) -> Object:
    """Leave out the bookkeeping of server-side apply: it is half of the memory and nobody reads it."""
    if "managedFields" not in obj["metadata"]:
        return obj
    return {**obj, "metadata": {k: v for k, v in obj["metadata"].items() if k != "managedFields"}}
