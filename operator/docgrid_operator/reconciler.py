"""Bringing one IndexingWorker's children and status to what they should be: level-based, safe to repeat.

Called by the work queue's threads, whatever put the key there: an event, a loop, the resync. What is there comes
from `Observed`; a child that is not there is asked for once more before it is created, because a child of that
name may be somebody else's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from docgrid_operator.api.v1alpha1 import IndexingWorker, InvalidObject
from docgrid_operator.applier import Applier
from docgrid_operator.cluster import Cluster, Forbidden, Invalid, NotFound
from docgrid_operator.conditions import DatabaseState, ModelState, Problem, derive_conditions
from docgrid_operator.events import EventRecorder, EventType
from docgrid_operator.kinds import (
    CHILD_KINDS,
    DEPLOYMENT,
    INDEXING_WORKER,
    POD,
    Key,
    Kind,
    Object,
    controller_uid,
)
from docgrid_operator.observed import Observed
from docgrid_operator.obstacles import next_look
from docgrid_operator.plan import difference, digest, surplus
from docgrid_operator.resources import WorkerDefaults, build_children
from docgrid_operator.status import Counts, build_status, leave_out

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class PoolFacts:
    """What loops have found out about the database, for the status of every pool."""

    database: DatabaseState = field(default_factory=DatabaseState)
    counts: Mapping[str, Counts] = field(default_factory=dict)  # by the IndexingWorker's uid


class Reconciler:
    """Turns an IndexingWorker into its ServiceAccount, Deployment and PodDisruptionBudget, and writes its status.

    Writes nothing when nothing differs, touches nothing that another controller owns, deletes only what its
    IndexingWorker owns. Raises `ApiUnavailable`, `TooManyRequests` and `Conflict` for the caller to repeat.
    """

    def __init__(
        self,
        cluster: Cluster,
        observed: Observed,
        events: EventRecorder,
        *,
        defaults: WorkerDefaults,
        facts: PoolFacts,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._observed = observed
        self._events = events
        self._defaults = defaults
        self._facts = facts
        self._clock = clock
        self._applier = Applier(cluster, observed)
        self._pruned: dict[Key, tuple[str, str]] = {}  # statuses that the apiserver did not take as they were

    def reconcile(self, key: Key) -> Problem | None:
        """Bring one IndexingWorker up to date; return what stands in the way until somebody acts, if anything."""
        raw = self._observed.get(INDEXING_WORKER, *key)
        if raw is None or raw["metadata"].get("deletionTimestamp"):
            self._forget(key)
            return None  # what it owned goes with it
        try:
            pool = IndexingWorker.parse(raw)
        except InvalidObject as error:
            self._events.note(raw, "InvalidSpec", str(error), type_=EventType.WARNING)
            log.warning("an IndexingWorker can not be read", pool=str(key))
            return Problem("InvalidSpec", str(error))
        problem = None
        for kind, desired in build_children(pool, self._defaults).items():
            found = self._reconcile_child(pool, raw, kind, desired)
            problem = problem or found
        self._reconcile_status(pool, raw, problem)
        return problem

    def next_look(self, key: Key) -> float | None:
        """Return the seconds after which an IndexingWorker's status may be another one without any event."""
        return next_look(self._observed.of_pool(POD, key), now=self._clock())

    def _reconcile_child(
        self, pool: IndexingWorker, raw: Object, kind: Kind, desired: Object | None
    ) -> Problem | None:
        live = self._observed.get(kind, pool.namespace, pool.name)
        if live is None and desired is not None:
            live = self._cluster.get(kind, pool.namespace, pool.name)
        if live is not None and controller_uid(live) != pool.uid:
            return self._report_taken(raw, kind, live) if desired is not None else None
        if desired is None:
            if live is not None:
                self._delete_child(kind, live)
            return None
        return self._apply_child(raw, kind, desired, live)

    def _apply_child(self, raw: Object, kind: Kind, desired: Object, live: Object | None) -> Problem | None:
        try:
            answer = self._applier.apply(kind, desired, live)
        except Invalid as error:
            return self._report(
                raw, Problem(f"{kind.name}Invalid", f"the {kind.name} is not accepted: {error}")
            )
        except Forbidden as error:
            return self._report(
                raw, Problem(f"{kind.name}Forbidden", f"the {kind.name} may not be written: {error}")
            )
        except NotFound:
            return Problem("NamespaceGone", f"the namespace of the {kind.name} is gone")
        if answer is not None and live is not None and kind is DEPLOYMENT:
            self._note_scaling(raw, live, answer)
        return None

    def _delete_child(self, kind: Kind, live: Object) -> None:
        metadata = live["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        self._cluster.delete(kind, metadata["namespace"], metadata["name"], uid=metadata["uid"])
        log.info("a child was deleted", kind=kind.name, pool=f"{metadata['namespace']}/{metadata['name']}")

    def _reconcile_status(self, pool: IndexingWorker, raw: Object, problem: Problem | None) -> None:
        deployment = self._observed.get(DEPLOYMENT, pool.namespace, pool.name)
        if deployment is not None and controller_uid(deployment) != pool.uid:
            deployment = None
        counts = self._facts.counts.get(pool.uid)
        now = self._clock()
        conditions = derive_conditions(
            pool,
            deployment=deployment,
            pods=self._observed.of_pool(POD, Key(pool.namespace, pool.name)),
            problem=problem,
            database=self._facts.database,
            model=counts.model if counts else ModelState.UNKNOWN,
            now=now,
        )
        previous = raw.get("status") or {}
        desired = build_status(
            pool,
            deployment=deployment,
            counts=counts,
            conditions=conditions,
            previous=previous,
            now=now,
        )
        if not _status_differs(desired["status"], previous):
            return
        key = Key(pool.namespace, pool.name)
        if self._pruned.get(key) == (_digest_status(desired["status"]), _digest_status(previous)):
            return
        try:
            answer = self._write_status(desired)
        except NotFound:
            self._observed.tell(INDEXING_WORKER, raw, deleted=True)  # its children must not come back
            return
        if extra := surplus(desired["status"], answer.get("status") or {}):
            # Of another manager: an apply leaves it where it is.
            answer = self._cluster.merge_status(INDEXING_WORKER, *key, {"status": extra})
        self._observed.written(INDEXING_WORKER, answer)
        taken = answer.get("status") or {}
        if left := difference(desired["status"], taken, "status"):
            self._pruned[key] = _digest_status(desired["status"]), _digest_status(taken)
            self._report_outdated(raw, left)

    def _write_status(self, desired: Object) -> Object:
        """Write a status; an older CustomResourceDefinition refuses fields that it does not have: without them."""
        while True:
            try:
                return self._cluster.apply_status(INDEXING_WORKER, desired)
            except Invalid as refusal:
                smaller = leave_out(desired, refusal.fields)  # it may name one of them at a time
                if smaller == desired:
                    raise
                desired = smaller

    def _forget(self, key: Key) -> None:
        self._pruned.pop(key, None)
        for kind in CHILD_KINDS:
            self._applier.forget(kind, key)

    def _note_scaling(self, raw: Object, before: Object, after: Object) -> None:
        old, new = before["spec"].get("replicas", 1), after["spec"].get("replicas", 1)
        if old != new:
            self._events.note(raw, "ScaledUp" if new > old else "ScaledDown", f"from {old} to {new} workers")

    def _report_taken(self, raw: Object, kind: Kind, live: Object) -> Problem:
        name = live["metadata"]["name"]
        return self._report(
            raw,
            Problem(
                "NameTaken",
                f"a {kind.name} named {name} is there that this IndexingWorker does not own; it is left alone:"
                " rename one of them or delete it",
            ),
        )

    def _report_outdated(self, raw: Object, field: str) -> None:
        log.warning("the installed CustomResourceDefinition does not know a field", field=field)
        self._events.note(
            raw,
            "CustomResourceDefinitionOutdated",
            f"the installed CustomResourceDefinition drops {field}: apply the one of this release",
            type_=EventType.WARNING,
        )

    def _report(self, raw: Object, problem: Problem) -> Problem:
        self._events.note(raw, problem.reason, problem.message, type_=EventType.WARNING)
        return problem


def _digest_status(status: Object) -> str:
    """Hash a status without the times of its conditions, which an apiserver that drops conditions would renew."""
    conditions = [{**c, "lastTransitionTime": ""} for c in status.get("conditions") or []]
    return digest({**status, "conditions": conditions})


def _status_differs(desired: Object, previous: Object) -> bool:
    """Compare in both directions: what we wrote once and do not write any more is removed by the next apply."""
    return bool(difference(desired, previous) or surplus(desired, previous))
