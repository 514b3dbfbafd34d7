"""Server-side apply of what differs, and of nothing else: reconciler and views write through it."""

import structlog

from docgrid_operator.cluster import Cluster
from docgrid_operator.kinds import Key, Kind, Object, key_of
from docgrid_operator.observed import Observed
from docgrid_operator.plan import derive_difference, digest, stamp

log = structlog.get_logger(__name__)


class Applier:
    """Applies an object when it is not live as it should be.

    What an apply leaves different (an admission webhook, an older CustomResourceDefinition) is not asked for
    again until either side moves: two writers that never agree must not keep each other busy.
    """

    def __init__(self, cluster: Cluster, observed: Observed) -> None:
        self._cluster = cluster
        self._observed = observed
        self._settled: dict[tuple[str, str, str], tuple[str, str]] = {}

    def apply(self, kind: Kind, desired: Object, live: Object | None) -> Object | None:
        """Apply `desired` if need be; return the apiserver's answer, or None if nothing was written.

        Raises what `Cluster.apply` raises. `live` must be ours to change: exactly that object is meant.
        """
        desired = stamp(desired)
        reason = derive_difference(desired, live)
        child = (kind.plural, *key_of(desired))
        if not reason or (live is not None and self._settled.get(child) == _settlement(desired, live)):
            return None
        sent = desired
        if live is not None:
            sent = {**desired, "metadata": {**desired["metadata"], "uid": live["metadata"]["uid"]}}
        answer = self._cluster.apply(kind, sent)
        self._observed.written(kind, answer)
        log.debug("an object was applied", kind=kind.name, key=str(key_of(desired)), reason=reason)
        if left := derive_difference(desired, answer):
            self._settled[child] = _settlement(desired, answer)
            log.warning(
                "the apiserver changes what is applied", kind=kind.name, key=str(key_of(desired)), field=left
            )
        else:
            self._settled.pop(child, None)
        return answer

    def forget(self, kind: Kind, key: Key) -> None:
        """Forget what was remembered of an object that is gone."""
        self._settled.pop((kind.plural, *key), None)


def _settlement(desired: Object, live: Object) -> tuple[str, str]:
    metadata = {name: live["metadata"].get(name) for name in ("labels", "annotations", "ownerReferences")}
    rest = {name: value for name, value in live.items() if name != "metadata"}
    if "status" not in desired:
        rest.pop("status", None)
    return digest(desired), digest([metadata, rest])
