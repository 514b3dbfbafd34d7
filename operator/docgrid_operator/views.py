"""The IndexingJob views: a bounded mirror of the queue, behind `kubectl get indexingjobs`.

A loop runs it. It reads the window of jobs that people want to see, compares it with the views that are there,
and writes the differences: changes first, then what must go, then what is new, so many a second at most. What is
left over the next round finds again, newer.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import structlog

from docgrid_core.database import Database
from docgrid_core.store.queries.views import ViewRow, view_window
from docgrid_operator import metrics
from docgrid_operator.actions import asks
from docgrid_operator.applier import Applier
from docgrid_operator.cluster import Cluster, Conflict, Forbidden, Invalid, NotFound
from docgrid_operator.events import EventRecorder, EventType
from docgrid_operator.kinds import DEPLOYMENT, FIELD_MANAGER, INDEXING_JOB, MANAGED_BY_LABEL, Object, key_of
from docgrid_operator.observed import Observed
from docgrid_operator.pace import Pace
from docgrid_operator.plan import digest, surplus
from docgrid_operator.resources.view import build_view, job_of, view_name
from docgrid_operator.settings import OperatorSettings

log = structlog.get_logger(__name__)

LINGER = timedelta(seconds=60)
"""How long a view stays at least after its job has ended: `kubectl wait` needs to see it."""
MOST_FAILED_EVENTS = 10
"""Events `Failed` in one round: a storm of failures must not become one of Events."""
REFUSED_SECONDS = 60.0
"""How long a view that the apiserver refuses is left alone: a quota or a policy changes when a person does it."""


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """What a round would write."""

    changed: list[tuple[Object, Object]]  # as it should be, as it is
    surplus: list[Object]
    missing: list[Object]


def plan_views(desired: Mapping[str, Object], live: Mapping[str, Object]) -> ViewPlan:
    """Compare the views by name; one that asks for an action stays until it is answered.

    Whose job changed first comes first: what a round has no time for must not be what the next has none for either.
    """
    there = [(view, live[name]) for name, view in desired.items() if name in live]
    return ViewPlan(
        changed=sorted(there, key=lambda pair: _changed_at(pair[0])),
        surplus=[view for name, view in live.items() if name not in desired and _may_go(view)],
        missing=[view for name, view in desired.items() if name not in live],
    )


def _may_go(view: Object) -> bool:
    return not asks(view) and "deletionTimestamp" not in view["metadata"]


def _changed_at(view: Object) -> str:
    status = view["status"]
    return str(status.get("finishedAt") or status.get("startedAt") or status.get("createdAt") or "")


def _removal(desired: Object, live: Object | None) -> Object:
    """Return a merge patch that removes what a person added to a view: an apply leaves it where it is."""
    if live is None:
        return {}
    added = surplus({group: desired[group] for group in ("spec", "status")}, live)
    return {**added, "metadata": {"uid": live["metadata"]["uid"]}} if added else {}


@dataclass(frozen=True, slots=True)
class _Refusal:
    view: str  # the digest of what was refused
    until: float  # monotonic seconds


class Views:
    """Keeps the views of one installation, in the namespace of its release."""

    def __init__(
        self,
        db: Database,
        cluster: Cluster,
        observed: Observed,
        events: EventRecorder,
        *,
        settings: OperatorSettings,
        pace: Pace,
    ) -> None:
        self._db = db
        self._cluster = cluster
        self._observed = observed
        self._events = events
        self._settings = settings
        self._pace = pace
        self._applier = Applier(cluster, observed)
        self._owner: Object | None = None
        self._refused: dict[str, _Refusal] = {}  # by name

    def run_once(self) -> None:
        """Write what differs; raises what database and cluster raise."""
        live = {key_of(view).name: view for view in self._live()}
        rows = view_window(
            self._db,
            limit=self._settings.views_limit,
            keep=[job_id for name in live if (job_id := job_of(name)) is not None],
            linger=LINGER,
        )
        desired = self._build(rows)
        self._refused = {name: refusal for name, refusal in self._refused.items() if name in desired}
        self._write(plan_views(desired, live))

    def _live(self) -> list[Object]:
        namespace = self._settings.namespace
        return [view for view in self._observed.all(INDEXING_JOB) if key_of(view).namespace == namespace]

    def _build(self, rows: Iterable[ViewRow]) -> dict[str, Object]:
        owner = self._find_owner()
        return {
            view_name(row.job_id): build_view(
                row, namespace=self._settings.namespace, owner=owner, redact=self._settings.views_redact
            )
            for row in rows
        }

    def _find_owner(self) -> Object | None:
        """Return the operator's own Deployment: the views go with it when the release is uninstalled."""
        name = self._settings.deployment_name
        if name and self._owner is None:
            self._owner = self._cluster.get(DEPLOYMENT, self._settings.namespace, name)
        return self._owner

    def _write(self, plan: ViewPlan) -> None:
        # The round ends when its time is over, for the next one knows more.
        end = time.monotonic() + self._settings.views_interval.total_seconds()
        failed = 0
        for desired, live in plan.changed:
            if time.monotonic() >= end:
                return
            if self._apply(desired, live):
                failed += self._note_failure(desired, live, noted=failed)
        for view in plan.surplus:
            if time.monotonic() >= end:
                return
            self._delete(view)
        for desired in plan.missing:
            if time.monotonic() >= end:
                return
            self._apply(desired, None)

    def _apply(self, desired: Object, live: Object | None) -> bool:
        """Write a view if need be; say whether it was written."""
        key = key_of(desired)
        refusal = self._refused.get(key.name)
        if refusal is not None and time.monotonic() < refusal.until and digest(desired) == refusal.view:
            return False
        try:
            answer = self._applier.apply(INDEXING_JOB, desired, live)
            if removal := _removal(desired, answer or live):
                answer = self._cluster.merge(INDEXING_JOB, *key, removal)
                self._observed.written(INDEXING_JOB, answer)
        except Conflict:
            return False  # deleted meanwhile: the watch tells, the next round creates it anew
        except (Invalid, Forbidden, NotFound) as error:
            if refusal is None:
                log.warning("a view can not be written", view=key.name, problem=str(error))
            self._refused[key.name] = _Refusal(digest(desired), time.monotonic() + REFUSED_SECONDS)
            self._pace.spend()
            return False
        if answer is None:
            return False
        self._refused.pop(key.name, None)
        metrics.VIEW_WRITES.labels(verb="apply").inc()
        self._pace.spend()
        return True

    def _delete(self, view: Object) -> None:
        metadata = view["metadata"]
        if (metadata.get("labels") or {}).get(MANAGED_BY_LABEL) != FIELD_MANAGER:
            self._events.note(
                view,
                "NotAView",
                "IndexingJobs mirror the jobs of the database and are written by the operator alone:"
                " this one is removed. Ingest a document to get a job",
                type_=EventType.WARNING,
            )
        try:
            self._cluster.delete(INDEXING_JOB, metadata["namespace"], metadata["name"], uid=metadata["uid"])
        except Conflict:
            return  # another object has its name by now
        metrics.VIEW_WRITES.labels(verb="delete").inc()
        self._observed.tell(INDEXING_JOB, view, deleted=True)
        self._applier.forget(INDEXING_JOB, key_of(view))
        self._pace.spend()

    def _note_failure(self, desired: Object, live: Object, *, noted: int) -> bool:
        status, before = desired["status"], live.get("status") or {}
        if (
            status["state"] != "FAILED"
            or before.get("state") in {"FAILED", None}
            or noted >= MOST_FAILED_EVENTS
        ):
            return False
        self._events.note(
            live, "Failed", f"{status.get('errorCode')}: {status.get('message')}", type_=EventType.WARNING
        )
        return True
