"""The IndexingJob that shows a job."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

from docgrid_core.jobs import JobId, JobStatus, ModelId
from docgrid_core.store.queries.views import ViewRow
from docgrid_operator.api.v1alpha1 import IndexingJob
from docgrid_operator.api.v1alpha1.indexing_job import IndexingJobSpec, IndexingJobStatus
from docgrid_operator.kinds import Object
from docgrid_operator.resources.view import build_view, job_of, view_name
from docgrid_operator.views import plan_views

CREATED = datetime(2026, 3, 1, 11, 58, 2, 999_999, tzinfo=UTC)
PENDING = ViewRow(
    job_id=JobId(42),
    source_uri="s3://documents/a.md",
    title="Über uns",
    version_no=3,
    model_id=ModelId(7),
    model_name="intfloat/multilingual-e5-small",
    model_version="",
    priority=0,
    status=JobStatus.PENDING,
    attempts=0,
    retry_count=0,
    max_retry_count=3,
    worker=None,
    indexing_worker=None,
    next_retry_at=None,
    error_code=None,
    error_message=None,
    created_at=CREATED,
    started_at=None,
    finished_at=None,
)
FAILED = replace(
    PENDING,
    model_version="2",
    priority=-5,
    status=JobStatus.FAILED,
    attempts=5,
    retry_count=3,
    worker="pool-6d4f9c-x7k2p",
    indexing_worker="pool",
    next_retry_at=CREATED + timedelta(minutes=1),
    error_code="DocumentInvalid",
    error_message="the document is not UTF-8",
    started_at=CREATED.astimezone(timezone(timedelta(hours=2))),
    finished_at=CREATED + timedelta(minutes=2),
)
OWNER: Object = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "docgrid-operator", "namespace": "docgrid", "uid": "u-1", "resourceVersion": "9"},
}


def view(row: ViewRow, *, owner: Object | None = None, redact: bool = False) -> Object:
    return build_view(row, namespace="docgrid", owner=owner, redact=redact)


def test_a_job_that_waits_shows_what_it_is_and_nothing_that_it_has_not() -> None:
    assert view(PENDING) == {
        "apiVersion": "docgrid.dev/v1alpha1",
        "kind": "IndexingJob",
        "metadata": {
            "name": "job-42",
            "namespace": "docgrid",
            "labels": {
                "app.kubernetes.io/managed-by": "docgrid-operator",
                "docgrid.dev/state": "PENDING",
                "docgrid.dev/model": "7",
            },
        },
        "spec": {
            "jobId": 42,
            "sourceUri": "s3://documents/a.md",
            "title": "Über uns",
            "versionNo": 3,
            "model": "intfloat/multilingual-e5-small",
            "priority": 0,
        },
        "status": {"state": "PENDING", "attempt": 0, "retries": "0/3", "createdAt": "2026-03-01T11:58:02Z"},
    }


def test_a_document_without_a_title_has_none_in_its_view() -> None:
    assert "title" not in view(replace(PENDING, title=""))["spec"]


def test_a_job_that_failed_shows_where_why_and_when() -> None:
    shown = view(FAILED)
    assert shown["spec"]["model"] == "intfloat/multilingual-e5-small 2"
    assert shown["metadata"]["labels"]["docgrid.dev/indexing-worker"] == "pool"
    assert shown["status"] == {
        "state": "FAILED",
        "attempt": 5,
        "retries": "3/3",
        "worker": "pool-6d4f9c-x7k2p",
        "nextRetryAt": "2026-03-01T11:59:02Z",
        "errorCode": "DocumentInvalid",
        "message": "the document is not UTF-8",
        "createdAt": "2026-03-01T11:58:02Z",
        "startedAt": "2026-03-01T11:58:02Z",
        "finishedAt": "2026-03-01T12:00:02Z",
    }


def test_a_view_is_one_that_its_schema_knows_whole() -> None:
    shown = view(FAILED)
    parsed = IndexingJob.parse(shown)
    assert parsed.spec.job_id == 42
    assert shown["spec"].keys() == {to_camel(name) for name in IndexingJobSpec.model_fields}
    assert shown["status"].keys() == {to_camel(name) for name in IndexingJobStatus.model_fields}


def test_a_redacted_view_does_not_name_the_document() -> None:
    shown = view(FAILED, redact=True)
    assert not {"title", "sourceUri"} & shown["spec"].keys()
    assert "Über uns" not in str(shown)
    assert "a.md" not in str(shown)
    assert shown["status"] == view(FAILED)["status"]


def test_a_view_goes_with_the_operators_deployment_which_does_not_wait_for_it() -> None:
    assert view(PENDING, owner=OWNER)["metadata"]["ownerReferences"] == [
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "docgrid-operator", "uid": "u-1"}
    ]


@pytest.mark.parametrize("pool", ["", "my pool", "-pool", "pool-", "größe", "x" * 64, "pool\n"])
def test_a_pool_whose_name_is_no_label_keeps_no_view_from_being_written(pool: str) -> None:
    labels = view(replace(FAILED, indexing_worker=pool))["metadata"]["labels"]
    assert "docgrid.dev/indexing-worker" not in labels


@pytest.mark.parametrize("pool", ["a", "p.1", "x" * 63])
def test_a_pool_whose_name_is_a_label_is_one(pool: str) -> None:
    assert view(replace(FAILED, indexing_worker=pool))["metadata"]["labels"][
        "docgrid.dev/indexing-worker"
    ] == (pool)


@given(st.integers(1, 10**18 - 1))
def test_a_views_name_tells_its_job(number: int) -> None:
    assert job_of(view_name(JobId(number))) == number


@pytest.mark.parametrize(
    "name",
    ["", "job-", "job-0", "job-042", "job--1", "job-1 ", "job-x", "Job-1", "job-1.2", "job-٣", "a-job-1"],
)
def test_a_name_that_is_no_views_tells_none(name: str) -> None:
    assert job_of(name) is None


def test_every_state_of_a_job_is_shown_as_it_is_called() -> None:
    for state in JobStatus:
        shown: Any = view(replace(PENDING, status=state))
        assert shown["status"]["state"] == shown["metadata"]["labels"]["docgrid.dev/state"] == state.value


def test_of_changed_views_the_one_whose_job_changed_first_is_written_first() -> None:
    rows = [
        replace(
            PENDING, job_id=JobId(1), status=JobStatus.PROCESSING, started_at=CREATED + timedelta(seconds=9)
        ),
        replace(
            PENDING, job_id=JobId(2), status=JobStatus.INDEXED, finished_at=CREATED + timedelta(seconds=8)
        ),
        replace(
            PENDING, job_id=JobId(3), status=JobStatus.INDEXED, finished_at=CREATED + timedelta(seconds=4)
        ),
    ]
    views = {
        f"job-{row.job_id}": build_view(row, namespace="docgrid", owner=None, redact=False) for row in rows
    }
    plan = plan_views(views, views)
    assert [desired["spec"]["jobId"] for desired, _live in plan.changed] == [3, 2, 1]
