"""What a person asks of a job by annotating its view: retry or cancel, done once, answered with an Event.

The object's uid and resourceVersion go into the job's event in the database: asked again, after a crash between
the transaction and the removal of the annotation, the transaction changes nothing and answers the same.
"""

import structlog

from docgrid_core.database import Database
from docgrid_core.errors import RefusedError
from docgrid_core.jobs import JobId
from docgrid_core.store import control
from docgrid_operator.cluster import Cluster, Conflict, NotFound
from docgrid_operator.events import EventRecorder, EventType
from docgrid_operator.kinds import CANCEL_ANNOTATION, INDEXING_JOB, RETRY_ANNOTATION, Object, key_of
from docgrid_operator.observed import Observed
from docgrid_operator.resources.view import job_of

log = structlog.get_logger(__name__)

_ACTIONS = (RETRY_ANNOTATION, CANCEL_ANNOTATION)


def asks(view: Object) -> bool:
    """Say whether a view carries an action's annotation, whatever its value."""
    annotations = view["metadata"].get("annotations") or {}
    return any(action in annotations for action in _ACTIONS)


class Actions:
    """Carries out what annotations ask for."""

    def __init__(self, db: Database, cluster: Cluster, observed: Observed, events: EventRecorder) -> None:
        self._db = db
        self._cluster = cluster
        self._observed = observed
        self._events = events

    def answer(self, view: Object) -> None:
        """Do what a view asks for, note an Event, remove the annotation.

        Raises what database and cluster raise: the annotation is still there then, and is answered again.
        """
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
        patch = {"metadata": {"uid": view["metadata"]["uid"], "annotations": dict.fromkeys(_ACTIONS)}}
        try:
            self._observed.written(INDEXING_JOB, self._cluster.merge(INDEXING_JOB, *key, patch))
        except (Conflict, NotFound):
            return  # the view is gone
