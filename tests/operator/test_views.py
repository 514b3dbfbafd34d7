"""IndexingJobs mirror the queue: bounded, put back when edited, and a person can act on a job through its view."""

import json

import psycopg
import pytest

from docgrid_core.jobs import FailureType, JobId
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import control, fail
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Execution, Stage
from docgrid_core.testing.invariants import violations
from docgrid_operator.kinds import Object
from support import tables
from support.operator_site import OperatorProcess, OperatorSite
from support.races import wait_until

POLICY = RetryPolicy()
BROKEN = fail.Report(FailureType.DOCUMENT_CONTENT_INVALID, "no text in it")
VIEW = "indexingjob"


@pytest.fixture
def operator(site: OperatorSite) -> OperatorProcess:
    return site.start_ready()


def job_of(run: Execution) -> JobId:
    assert run.document.job_id is not None
    return run.document.job_id


def failed(site: OperatorSite, name: str = "") -> JobId:
    run = factories.run(site.db, Stage.STARTED, document=factories.register(site.db, name))
    fail.fail(site.db, run.own, BROKEN, policy=POLICY)
    return job_of(run)


def view_of(site: OperatorSite, job_id: JobId | None) -> Object | None:
    return site.get(VIEW, f"job-{job_id}")


def wait_for_state(site: OperatorSite, job_id: JobId | None, state: str) -> Object:
    def has_state() -> bool:
        view = view_of(site, job_id)
        return view is not None and view["status"]["state"] == state

    wait_until(has_state)
    view = view_of(site, job_id)
    assert view is not None
    return view


def names(site: OperatorSite) -> set[str]:
    output = site.kubectl("get", VIEW, "-o", "jsonpath={range .items[*]}{.metadata.name}{'\\n'}{end}")
    return set(output.out.split())


def annotate(site: OperatorSite, job_id: JobId | None, annotation: str) -> None:
    site.kubectl("annotate", VIEW, f"job-{job_id}", annotation)


def wait_for_event(site: OperatorSite, job_id: JobId | None, reason: str) -> str:
    def message() -> str:
        fields = f"involvedObject.name=job-{job_id},reason={reason}"
        items = json.loads(site.kubectl("get", "events", "--field-selector", fields, "-o", "json").out)[
            "items"
        ]
        return str(items[0]["message"]) if items else ""

    wait_until(message)
    return message()


def wait_for_answer(site: OperatorSite, job_id: JobId | None) -> None:
    def is_answered() -> bool:
        view = view_of(site, job_id)
        annotations = (view or {"metadata": {}})["metadata"].get("annotations", {})
        return not {"docgrid.dev/retry", "docgrid.dev/cancel"} & set(annotations)

    wait_until(is_answered)


def events_of(site: OperatorSite, job_id: JobId | None, event_type: str) -> int:
    return tables.events(site.db, job_id).count(event_type)


def may_write(site: OperatorSite) -> bool:
    said = site.kubectl.attempt("auth", "can-i", "patch", VIEW, f"--as={site.user}")
    return said.out.strip() == "yes"


def test_a_job_is_shown_from_its_registration_to_its_end(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    document = factories.register(site.db, "report", priority=3)
    view = wait_for_state(site, document.job_id, "PENDING")
    assert view["spec"] == {
        "jobId": document.job_id,
        "sourceUri": "s3://bucket/report.txt",
        "title": "report",
        "versionNo": 1,
        "model": "tiny 1",
        "priority": 3,
    }
    assert view["status"]["retries"] == "0/3"
    run = factories.run(site.db, Stage.VECTORS_STORED, document=document)
    view = wait_for_state(site, document.job_id, "PROCESSING")
    assert (view["status"]["attempt"], view["status"]["worker"]) == (1, "worker")
    factories.advance(site.db, run.own, Stage.COMPLETED)
    site.kubectl(
        "wait", "--for=jsonpath={.status.state}=INDEXED", f"{VIEW}/job-{document.job_id}", "--timeout=60s"
    )
    selected = site.kubectl("get", "ij", "--field-selector", "status.state=INDEXED", "-o", "name").out
    assert selected.split() == [f"indexingjob.docgrid.dev/job-{document.job_id}"]


def test_a_view_holds_no_token_and_no_text(site: OperatorSite, operator: OperatorProcess) -> None:
    runs = [factories.run(site.db, Stage.CHUNKS_STORED) for _ in range(3)]
    for run in runs:
        wait_for_state(site, job_of(run), "PROCESSING")
    shown = site.kubectl("get", f"{VIEW}s,indexingworkers,events", "-o", "yaml").out + operator.output()
    for run in runs:
        assert str(run.claim.token) not in shown
    assert "chunk 0" not in shown


def test_what_a_person_changes_in_a_view_is_put_back(site: OperatorSite, operator: OperatorProcess) -> None:
    document = factories.register(site.db)
    before = wait_for_state(site, document.job_id, "PENDING")
    edits: Object = {
        "spec": {"title": "mine", "priority": 99},
        "status": {"state": "INDEXED", "message": "made up", "finishedAt": "2026-01-01T00:00:00Z"},
        "metadata": {"labels": {"docgrid.dev/state": "INDEXED", "mine": "kept"}},
    }
    site.kubectl("patch", VIEW, f"job-{document.job_id}", "--type=merge", "-p", json.dumps(edits))

    def is_back() -> bool:
        view = view_of(site, document.job_id)
        assert view is not None
        same = all(view[part] == before[part] for part in ("spec", "status"))
        return same and view["metadata"]["labels"]["docgrid.dev/state"] == "PENDING"

    wait_until(is_back)
    site.kubectl("delete", VIEW, f"job-{document.job_id}")
    wait_for_state(site, document.job_id, "PENDING")


def test_a_view_that_a_person_made_is_told_of_and_removed(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    manifest = {
        "apiVersion": "docgrid.dev/v1alpha1",
        "kind": "IndexingJob",
        "metadata": {"name": "job-4711"},
        "spec": {"jobId": 4711},
    }
    site.kubectl.apply(manifest)
    wait_until(lambda: "job-4711" not in names(site))
    assert "written by the operator alone" in wait_for_event(site, JobId(4711), "NotAView")


def test_a_failed_job_is_retried_by_annotation_once(site: OperatorSite, operator: OperatorProcess) -> None:
    job_id = failed(site)
    view = wait_for_state(site, job_id, "FAILED")
    assert view["status"]["errorCode"] == "DOCUMENT_CONTENT_INVALID"
    annotate(site, job_id, "docgrid.dev/retry=true")
    wait_for_answer(site, job_id)
    assert tables.job(site.db, job_id).status == "PENDING"
    assert events_of(site, job_id, "MANUAL_RETRY") == 1
    wait_for_event(site, job_id, "Retried")
    wait_for_state(site, job_id, "PENDING")
    assert violations(site.db) == []


def test_a_running_job_is_canceled_by_annotation(site: OperatorSite, operator: OperatorProcess) -> None:
    job_id = job_of(factories.run(site.db))
    wait_for_state(site, job_id, "PROCESSING")
    annotate(site, job_id, "docgrid.dev/cancel=true")
    wait_for_state(site, job_id, "CANCELED")
    wait_for_event(site, job_id, "Canceled")
    assert events_of(site, job_id, "CANCELED") == 1
    assert violations(site.db) == []


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        (["docgrid.dev/retry=yes please"], "must be"),
        (["docgrid.dev/retry=true", "docgrid.dev/cancel=true"], "at once"),
        (["docgrid.dev/retry=true"], "only a FAILED job can be retried"),
    ],
)
def test_what_can_not_be_done_is_said_and_nothing_is_done(
    site: OperatorSite, operator: OperatorProcess, annotations: list[str], says: str
) -> None:
    document = factories.register(site.db)
    wait_for_state(site, document.job_id, "PENDING")
    site.kubectl("annotate", VIEW, f"job-{document.job_id}", *annotations)
    assert says in wait_for_event(site, document.job_id, "ActionRefused")
    wait_for_answer(site, document.job_id)
    assert tables.job(site.db, document.job_id).status == "PENDING"


def test_a_job_that_is_locked_for_long_holds_up_no_view_and_is_answered_after_it(
    site: OperatorSite, operator: OperatorProcess, session: psycopg.Connection
) -> None:
    locked = factories.register(site.db).job_id
    wait_for_state(site, locked, "PENDING")
    session.execute("SELECT FROM embedding_jobs WHERE id = %s FOR UPDATE", [locked])
    annotate(site, locked, "docgrid.dev/cancel=true")
    operator.wait_for_rounds("views")
    wait_for_state(site, factories.register(site.db).job_id, "PENDING")
    session.rollback()
    wait_for_state(site, locked, "CANCELED")
    wait_for_answer(site, locked)
    assert events_of(site, locked, "CANCELED") == 1


def test_a_view_that_may_not_be_written_is_tried_seldom_and_told_once(site: OperatorSite) -> None:
    operator = site.start_ready()
    read_only = [{"op": "replace", "path": "/rules/2/verbs", "value": ["list", "watch"]}]
    site.kubectl("patch", "role", "docgrid-operator", "--type=json", "-p", json.dumps(read_only))
    wait_until(lambda: not may_write(site))
    mark = site.control_plane.audit.mark()
    jobs = [factories.register(site.db).job_id for _ in range(3)]
    operator.wait_for_rounds("views", count=4)
    refused = [write for write in site.writes(since=mark) if write.resource == "indexingjobs"]
    assert sorted(write.name for write in refused) == [f"job-{job_id}" for job_id in jobs]
    assert len(operator.lines("a view can not be written")) == len(jobs)


def test_an_action_that_was_done_before_a_crash_is_not_done_again(site: OperatorSite) -> None:
    operator = site.start_ready()
    job_id = failed(site)
    wait_for_state(site, job_id, "FAILED")
    operator.kill()
    annotate(site, job_id, "docgrid.dev/retry=true")
    view = view_of(site, job_id)
    assert view is not None
    metadata = view["metadata"]
    # What an operator does that dies between the transaction and the removal of the annotation.
    control.retry(
        site.db, job_id, reason="test", by="test", request=f"{metadata['uid']}/{metadata['resourceVersion']}"
    )
    own = factories.start_next(site.db)
    fail.fail(site.db, own, BROKEN, policy=POLICY)

    site.start_ready()

    wait_for_answer(site, job_id)
    assert tables.job(site.db, job_id).status == "FAILED"
    assert events_of(site, job_id, "MANUAL_RETRY") == 1


def test_views_are_bounded_and_what_runs_is_always_among_them(site: OperatorSite) -> None:
    operator = site.start_ready(operator_views_limit="4")
    running = [job_of(factories.run(site.db)) for _ in range(2)]
    broken = failed(site)
    for _ in range(20):
        factories.register(site.db)
    wait_until(lambda: {f"job-{job_id}" for job_id in [*running, broken]} <= names(site))
    operator.wait_for_rounds("views")
    assert len(names(site)) == 4


def test_nothing_is_written_while_nothing_happens_to_a_job(
    site: OperatorSite, operator: OperatorProcess
) -> None:
    jobs = [job_of(factories.run(site.db)), failed(site), factories.register(site.db).job_id]
    wait_until(lambda: names(site) == {f"job-{job_id}" for job_id in jobs})
    mark = operator.wait_until_quiet(site)
    operator.wait_for_rounds("views", "resync", count=3)
    assert site.writes(since=mark) == []


def test_titles_and_addresses_can_be_left_out(site: OperatorSite) -> None:
    operator = site.start_ready(operator_views_redact="true")
    document = factories.register(site.db, "top secret")
    view = wait_for_state(site, document.job_id, "PENDING")
    assert not {"title", "sourceUri"} & set(view["spec"])
    assert "top secret" not in json.dumps(view) + operator.output()


def test_views_can_be_turned_off(site: OperatorSite) -> None:
    factories.register(site.db)
    operator = site.start_ready(operator_views_limit="0")
    operator.wait_for_rounds("views")
    assert names(site) == set()
