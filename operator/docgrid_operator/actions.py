"""What a person asks of a job by annotating its view: retry or cancel, done once, answered with an Event.

The object's uid and resourceVersion go into the job's event in the database: asked again, after a crash between
the transaction and the removal of the annotation, the transaction changes nothing and answers the same.
"""

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import DatabaseUnavailable, DocGridError, RefusedError
from docgrid_core.jobs import JobId
from docgrid_core.store import control
from docgrid_operator.cluster import (
    ApiUnavailable,
    Cluster,
    ClusterError,
    Conflict,
    NotFound,
    TooManyRequests,
)
from docgrid_operator.events import EventRecorder, EventType
from docgrid_operator.kinds import CANCEL_ANNOTATION, INDEXING_JOB, RETRY_ANNOTATION, Object, key_of
from docgrid_operator.loops import note_progress
from docgrid_operator.observed import Observed
from docgrid_operator.pace import Pace
from docgrid_operator.resources.view import job_of

log = structlog.get_logger(__name__)

_ACTIONS = (RETRY_ANNOTATION, CANCEL_ANNOTATION)


def asks(view: Object) -> bool:
    """Say whether a view carries an action's annotation, whatever its value."""
    annotations = view["metadata"].get("annotations") or {}
    return any(action in annotations for action in _ACTIONS)


class Actions:
    """Carries out what annotations ask for. A loop runs it, not that of the views: a job may be locked for long."""

    def __init__(
        self,
        db: Database,
        cluster: Cluster,
        observed: Observed,
        events: EventRecorder,
        *,
        namespace: str,
        pace: Pace,
    ) -> None:
        self._db = db
        self._cluster = cluster
        self._observed = observed
        self._events = events
        self._namespace = namespace
        self._pace = pace

    def concerns(self, view: Object) -> bool:
        """Say whether a view of this release asks for something."""
        return key_of(view).namespace == self._namespace and asks(view)

    def run_once(self) -> None:
        """Answer every view that asks; raises `ApiUnavailable`, `TooManyRequests` and `DatabaseUnavailable`.

        One that can not be answered for another reason is asked again in the next round, and holds up no other.
        """
        for view in self._observed.all(INDEXING_JOB):
            if not self.concerns(view):
                continue
            note_progress()
            try:
                self._answer(view)
            except (ApiUnavailable, TooManyRequests, DatabaseUnavailable):
                raise
            except (ClusterError, DocGridError) as error:
                problem = type(error).__name__
                log.warning("an annotation can not be answered", view=key_of(view).name, problem=problem)
            self._pace.spend()

    def _answer(self, view: Object) -> None:
        # 1. The transaction; 2. the Event; 3. the annotation. A crash after 1. repeats it, which changes nothing.
        self._carry_out(view)
        self._remove_annotations(view)

    def _carry_out(self, view: Object) -> None:
        annotations = view["metadata"].get("annotations") or {}
        asked = {action: annotations[action] for action in _ACTIONS if action in annotations}
        job_id = job_of(key_of(view).name)
        if job_id is None:
            self._refuse(view, "this object shows no job: its name is not job-ID")
        elif len(asked) > 1:
            self._refuse(view, "retry and cancel were asked for at once: neither was done")
        elif "true" not in asked.values():
            self._refuse(view, f'{next(iter(asked))} must be "true": nothing was done')
        else:
            self._run(view, job_id, next(iter(asked)))

    def _run(self, view: Object, job_id: JobId, action: str) -> None:
        metadata = view["metadata"]
        request = f"{metadata['uid']}/{metadata['resourceVersion']}"
        change = control.retry if action == RETRY_ANNOTATION else control.cancel
        try:
            change(self._db, job_id, reason=f"annotation {action}", by="kubectl", request=request)
        except RefusedError as error:
            self._refuse(view, str(error))
            return
        done = "Retried" if action == RETRY_ANNOTATION else "Canceled"
        self._events.note(view, done, f"job {job_id}: asked for by annotation")
        log.info("a job was changed by annotation", job_id=job_id, action=done)

    def _refuse(self, view: Object, message: str) -> None:
        self._events.note(view, "ActionRefused", message, type_=EventType.WARNING)

    def _remove_annotations(self, view: Object) -> None:
        key = key_of(view)
        asked = [action for action in _ACTIONS if action in view["metadata"]["annotations"]]
        patch = {"metadata": {"uid": view["metadata"]["uid"], "annotations": dict.fromkeys(asked)}}
        try:
            self._observed.written(INDEXING_JOB, self._cluster.merge(INDEXING_JOB, *key, patch))
        except (Conflict, NotFound):
            return  # the view is gone
