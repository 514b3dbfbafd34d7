"""What the operator reports of an IndexingWorker; `docgrid_operator.status` writes it, nothing parses it."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from docgrid_operator.api.v1alpha1.fields import Text
from docgrid_operator.api.v1alpha1.model import ApiModel

Count = Annotated[int, Field(ge=0)]


class Workers(ApiModel):
    """The pool's workers in the database."""

    active: Count | None = None
    """Workers that run a job."""
    idle: Count | None = None
    """Workers that wait for one."""
    stopped: Count | None = None
    """Workers that ended as they were told, in the last hour."""
    dead: Count | None = None
    """Workers that ended otherwise, in the last hour."""


class Queue(ApiModel):
    """The jobs of the pool's model, whichever pool takes them; counts stop at 10000."""

    ready: Count | None = None
    """Jobs that wait for a worker."""
    delayed: Count | None = None
    """Jobs that wait for the time of their next try."""
    processing: Count | None = None
    """Jobs that a worker runs."""
    failed: Count | None = None
    """Jobs that have failed."""
    oldest_ready_at: datetime | None = None
    """Since when the longest waiting of the ready jobs has waited."""


class Condition(ApiModel):
    """One thing that holds or does not."""

    type: Text
    """What it is about: Available, Progressing, DatabaseReachable, ModelReady or Suspended."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: Annotated[str, Field(max_length=1024)]
    """Why, in a word."""
    message: Annotated[str, Field(max_length=32_768)]
    """Why, and what to do about it."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """Generation of the spec that it was said of."""
    last_transition_time: datetime
    """Since when status is what it is."""


class IndexingWorkerStatus(ApiModel):
    """What the pool is."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """Generation of the spec that the rest was said of."""
    replicas: Count | None = None
    """Workers that there are."""
    ready_replicas: Count | None = None
    """Workers that are ready."""
    selector: str | None = None
    """Labels of the pool's pods; a HorizontalPodAutoscaler finds them by it."""
    workers: Workers | None = None
    queue: Queue | None = None
    conditions: Annotated[
        list[Condition],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = Field(default_factory=list)
    """What holds of the pool, and why."""
