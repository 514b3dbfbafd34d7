"""IndexingJob: a job of the database, shown in Kubernetes. `docgrid_operator.views` writes it and nobody else."""

from datetime import datetime
from typing import Annotated, ClassVar

from pydantic import Field

from docgrid_core.jobs import JobStatus
from docgrid_operator.api.v1alpha1.model import ApiModel, Resource, Rule


class IndexingJobSpec(ApiModel):
    """Which job it is."""

    job_id: Annotated[int, Field(ge=1)]
    """Id of the job in the database."""
    source_uri: str | None = None
    """Where the document came from; left out if views are redacted."""
    title: str | None = None
    """Title of the document; left out if views are redacted."""
    version_no: int | None = None
    """Which version of the document it indexes."""
    model: str | None = None
    """Embedding model, name and version."""
    priority: int | None = None
    """The higher, the sooner."""


class IndexingJobStatus(ApiModel):
    """How far the job is."""

    state: JobStatus | None = None
    """Where it stands in the queue."""
    attempt: int | None = None
    """How often it was started."""
    retries: str | None = None
    """Retries that were spent, of those it has: 1/3."""
    worker: str | None = None
    """Pod, or name, of the worker that runs it or ran it last."""
    next_retry_at: datetime | None = None
    """When it may be tried again."""
    error_code: str | None = None
    """What the last failure was, as a code."""
    message: str | None = None
    """What the last failure was, in words."""
    created_at: datetime | None = None
    """When the job was made."""
    started_at: datetime | None = None
    """When it was first started."""
    finished_at: datetime | None = None
    """When it ended."""


class IndexingJob(Resource):
    """A job of the database, to be read. The operator writes it, and puts back what anybody else changes.

    Annotate it with docgrid.dev/retry=true or docgrid.dev/cancel=true to act on the job.
    """

    spec: IndexingJobSpec

    rules: ClassVar = (
        Rule(
            field="metadata",
            cel="self.metadata.name.matches('^job-[1-9][0-9]{0,17}$')"
            " && int(self.metadata.name.substring(4)) == self.spec.jobId",
            message="metadata.name must be job-<spec.jobId>: IndexingJobs are written by the operator",
            holds=lambda view: view.metadata.name == f"job-{view.spec.job_id}",
        ),
    )
