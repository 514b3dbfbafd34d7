"""Promises of `docgrid jobs`, `docgrid documents`, `docgrid workers` and `docgrid queue`."""

import json
import os
import pty
import signal
from collections.abc import Callable

import pytest

from docgrid_core.database import Database
from docgrid_core.jobs import EventType, FailureType, JobId, JobStatus, StopReason
from docgrid_core.records import Registration
from docgrid_core.retry import RetryPolicy
from docgrid_core.store import documents, fail, workers
from docgrid_core.store.fail import Report
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Stage
from docgrid_core.testing.invariants import violations
from support import tables
from support.cli import Cli


def job_of(document: Registration) -> JobId:
    assert document.job_id is not None
    return document.job_id


def fail_next(
    db: Database, failure_type: FailureType = FailureType.DOCUMENT_CONTENT_INVALID, name: str = ""
) -> JobId:
    """Register a document and let its job fail; retries are used up by hand."""
    document = factories.register(db, name)
    tables.change(
        db, "UPDATE embedding_jobs SET retry_count = max_retry_count WHERE id = :id", id=document.job_id
    )
    execution = factories.run(db, Stage.PARSE_PREPARED, document=document)
    report = Report(failure_type, "the text is not UTF-8", "DOCUMENT-PARSING-003")
    fail.fail(db, execution.own, report, policy=RetryPolicy())
    return job_of(document)


# --- list and show ----------------------------------------------------------------------------------


def test_jobs_are_listed_newest_first_and_by_filter(cli: Cli, db: Database) -> None:
    failed = fail_next(db, name="broken")
    execution = factories.run(db, Stage.EMBED_PREPARED, document=factories.register(db, "running"))
    waiting = factories.register(db, "waiting")

    def listed(*options: str) -> list[str]:
        return cli("jobs", "list", *options, "-o", "name").out.split()

    running = execution.document
    assert listed() == [f"job/{job}" for job in (waiting.job_id, running.job_id, failed)]
    assert listed("-s", "failed") == [f"job/{failed}"]
    assert listed("--status", "PENDING") == [f"job/{waiting.job_id}"]
    assert listed("-f", "document_content_invalid") == [f"job/{failed}"]
    assert listed("--document", str(running.document_id)) == [f"job/{running.job_id}"]
    assert listed("--worker", f"worker/{execution.worker.id}") == [f"job/{running.job_id}"]
    lines = cli("jobs", "list").rows
    assert lines[1][1:4] == ["PROCESSING", "EMBEDDING", "worker"]
    assert lines[2][1:3] == ["FAILED", "DOCUMENT-PARSING-003"]


def test_a_page_tells_on_stderr_that_there_is_more(cli: Cli, db: Database) -> None:
    for _ in range(3):
        factories.register(db)
    answer = cli("jobs", "list", "--limit", "2")
    assert len(answer.rows) == 2
    assert answer.err == "page 0: 2 of 3 (--page and --limit show others)\n"
    assert len(cli("jobs", "list", "--limit", "2", "--page", "1").rows) == 1
    assert cli("jobs", "list", "--limit", "2", "-o", "json").err == ""


def test_a_delayed_job_says_when_it_runs_again(cli: Cli, db: Database) -> None:
    document = factories.register(db)
    execution = factories.run(db, document=document)
    report = Report(FailureType.STORAGE_UNAVAILABLE, "away", "DOCUMENT-STORAGE-001")
    fail.fail(db, execution.own, report, policy=RetryPolicy())
    assert cli("jobs", "list").rows[0][1:4] == ["PENDING", "retry", "in"]
    assert "runs again  in " in cli("jobs", "show", str(document.job_id)).out


def test_a_job_is_shown_with_attempts_history_and_what_to_do(cli: Cli, db: Database) -> None:
    job = fail_next(db)
    out = cli("jobs", "show", f"job/{job}").out
    assert out.startswith(f"job {job}: FAILED\n")
    assert "reason      DOCUMENT-PARSING-003: the text is not UTF-8" in out
    assert "what to do  The document itself can not be indexed" in out
    detail = cli("jobs", "show", str(job), "-o", "json").json
    assert [attempt["status"] for attempt in detail["attempts"]] == ["FAILED"]
    kinds = [event["eventType"] for event in detail["events"]]
    assert kinds == ["JOB_CREATED", "LOCKED", "PARSE_STARTED", "PARSE_FAILED", "FAILED"]
    assert all(kind in out for kind in kinds)
    assert cli("jobs", "show", str(job), "-o", "name").out == f"job/{job}\n"


@pytest.mark.parametrize("failure_type", [kind for kind in FailureType if not kind.startswith("WORKER_")])
def test_each_failure_comes_with_what_to_do(cli: Cli, db: Database, failure_type: FailureType) -> None:
    assert "what to do  " in cli("jobs", "show", str(fail_next(db, failure_type))).out


def test_no_output_holds_a_claim_token(cli: Cli, db: Database) -> None:
    execution = factories.run(db, Stage.EMBED_PREPARED)
    token = str(execution.own.token.value)
    for command in ("jobs list", f"jobs show {execution.document.job_id}", "workers list", "documents list"):
        for output in ("table", "json", "yaml"):
            answer = cli(*command.split(), "-o", output)
            assert answer.code == 0
            assert token not in answer.out + answer.err


# --- watch ------------------------------------------------------------------------------------------


def test_watching_without_a_terminal_tells_each_change_on_a_line(cli: Cli, db: Database) -> None:
    document = factories.register(db, "report")
    with cli.start("jobs", "watch", "-o", "json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["status"] == "PENDING"
        execution = factories.run(db, document=document)
        assert json.loads(process.stdout.readline())["status"] == "PROCESSING"
        factories.advance(db, execution.own, Stage.COMPLETED)
        seen = ""
        while seen != "INDEXED":
            seen = json.loads(process.stdout.readline())["status"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_watching_on_a_terminal_shows_a_table_that_changes(cli: Cli, db: Database) -> None:
    document = factories.register(db, "report")
    cli.environment |= {"TERM": "xterm", "COLUMNS": "100", "LINES": "20"}
    ours, theirs = pty.openpty()
    with cli.start("jobs", "watch", stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        read_until(ours, lambda text: "1 ready" in text and "report" in text)
        factories.run(db, Stage.EMBED_PREPARED, document=document)
        read_until(ours, lambda text: "0 ready, 0 delayed, 1 processing" in text and "EMBEDDING" in text)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    os.close(ours)


def read_until(descriptor: int, there: Callable[[str], bool]) -> str:
    """Read from a terminal until what was read satisfies `there`; pytest's time limit ends a vain wait."""
    text = ""
    while not there(text):
        text += os.read(descriptor, 65_536).decode(errors="replace")
    return text


# --- retry and cancel -------------------------------------------------------------------------------


def test_a_named_job_is_retried_with_who_asked_and_why(cli: Cli, db: Database) -> None:
    job = fail_next(db)
    answer = cli("jobs", "retry", str(job), "--reason", "repaired")
    assert (answer.code, answer.out) == (0, f"job {job} retried\n")
    assert tables.job(db, job).status == JobStatus.PENDING
    (event,) = tables.fetch(db, "SELECT * FROM indexing_events WHERE event_type = 'MANUAL_RETRY'")
    assert event.message == "repaired"
    assert event.metadata["by"]


def test_a_refused_job_leaves_the_others_and_fails_the_command(cli: Cli, db: Database) -> None:
    failed, waiting = fail_next(db), job_of(factories.register(db))
    answer = cli("jobs", "retry", str(waiting), "999", str(failed))
    assert (answer.code, answer.out) == (1, f"job {failed} retried\n")
    assert answer.err.splitlines() == [
        f"EMBEDDING-JOB-008: job {waiting} is PENDING: only a FAILED job can be retried",
        "EMBEDDING-JOB-001: there is no job 999",
    ]


def test_all_failed_jobs_of_a_kind_are_retried_after_a_confirmation(cli: Cli, db: Database) -> None:
    wrong = [fail_next(db), fail_next(db)]
    away = [fail_next(db, FailureType.STORAGE_UNAVAILABLE) for _ in range(3)]
    asked = cli.run("jobs", "retry", "--failure-type", "STORAGE_UNAVAILABLE")
    assert (asked.code, asked.out) == (2, "")
    assert "Retry 3 jobs? Nobody can answer here: add --yes" in asked.err
    answer = cli("jobs", "retry", "--failure-type", "STORAGE_UNAVAILABLE", "--yes")
    assert (answer.code, answer.out) == (0, "3 jobs retried\n")
    assert {tables.job(db, job).status for job in away} == {JobStatus.PENDING}
    assert {tables.job(db, job).status for job in wrong} == {JobStatus.FAILED}
    assert cli("jobs", "retry", "--all", "-y").out == "2 jobs retried\n"
    assert cli("jobs", "retry", "--all", "-y").out == "no job matches\n"


def test_a_bulk_retry_passes_over_what_can_not_be_retried(cli: Cli, db: Database) -> None:
    fail_next(db)
    deleted = fail_next(db)
    documents.delete(db, tables.document(db, deleted).id, reason="", by="test")
    answer = cli("jobs", "retry", "--all", "--yes")
    assert (answer.code, answer.out) == (0, "1 job retried, 1 passed over\n")
    assert f"the document of job {deleted} is deleted" in answer.err


def test_on_a_terminal_a_person_is_asked_and_no_changes_nothing(cli: Cli, db: Database) -> None:
    job = fail_next(db)
    for reply, code, status in ((b"n\n", 1, JobStatus.FAILED), (b"y\n", 0, JobStatus.PENDING)):
        ours, theirs = pty.openpty()
        with cli.start("jobs", "retry", "--all", stdin=theirs, stderr=theirs) as process:
            os.close(theirs)
            read_until(ours, lambda text: "Retry 1 job? [y/N]" in text)
            os.write(ours, reply)
            assert process.wait(30) == code
        os.close(ours)
        assert tables.job(db, job).status == status


def test_live_jobs_are_canceled_by_name_state_document_or_all(cli: Cli, db: Database) -> None:
    running = factories.run(db)
    waiting = [factories.register(db) for _ in range(4)]
    assert cli("jobs", "cancel", f"job/{waiting[0].job_id}").out == f"job {waiting[0].job_id} canceled\n"
    by_document = cli("jobs", "cancel", "--document", f"document/{waiting[1].document_id}", "-y")
    assert by_document.out == "1 job canceled\n"
    assert cli("jobs", "cancel", "-s", "processing", "-y").out == "1 job canceled\n"
    assert cli("jobs", "cancel", "--all", "-y").out == "2 jobs canceled\n"
    assert tables.events(db, running.document.job_id)[-1] == EventType.CANCELED
    assert cli("jobs", "cancel", str(running.document.job_id)).code == 1
    assert violations(db) == []


@pytest.mark.parametrize(
    "arguments", [["retry"], ["cancel"], ["retry", "1", "--all"], ["cancel", "1", "--all"]]
)
def test_jobs_are_either_named_or_chosen_by_a_filter(cli: Cli, arguments: list[str]) -> None:
    answer = cli("jobs", *arguments)
    assert answer.code == 2
    assert "name the jobs by their ids, or choose them with --all or a filter" in answer.err


# --- documents, workers, queue ----------------------------------------------------------------------


def test_a_document_is_shown_with_its_versions(cli: Cli, db: Database) -> None:
    factories.index(db, "report", "old")
    document = factories.register(db, "report", "new")
    out = cli("documents", "show", f"document/{document.document_id}").out
    assert out.startswith(f"document {document.document_id}: report\n")
    assert "searchable  version 1 with 3 passages" in out
    detail = cli("documents", "show", str(document.document_id), "-o", "json").json
    shown = [
        (version["versionNo"], version["status"], version["isCurrent"]) for version in detail["versions"]
    ]
    assert shown == [(2, "UPLOADED", False), (1, "INDEXED", True)]


def test_documents_are_deleted_and_an_unknown_one_does_not_hold_up_the_others(cli: Cli, db: Database) -> None:
    document = factories.register(db)
    answer = cli("documents", "delete", "999", f"document/{document.document_id}")
    assert (answer.code, answer.out) == (1, f"document {document.document_id} deleted\n")
    assert answer.err == "DOCUMENT-001: there is no document 999\n"
    again = cli("documents", "delete", str(document.document_id))
    assert (again.code, again.err) == (1, f"DOCUMENT-001: document {document.document_id} is deleted\n")
    assert tables.job(db, document.job_id).status == JobStatus.CANCELED


def test_live_workers_are_listed_and_ended_ones_when_asked_for(cli: Cli, db: Database) -> None:
    live, silent, dead = (factories.register_worker(db, pod_uid=uid) for uid in ("a", "b", "c"))
    tables.silence(db, silent.id)
    workers.mark_pod_ended(db, pod_uid="c", reason=StopReason.ERROR)
    assert cli("workers", "list", "-o", "name").out == f"worker/{live.id}\n"
    shown = {row["id"]: row for row in cli("workers", "list", "--all", "-o", "json").json}
    assert shown[silent.id]["effectiveStatus"] == "DEAD"
    assert (shown[dead.id]["status"], shown[dead.id]["stopReason"]) == ("DEAD", "Error")


def test_without_workers_it_says_how_to_start_some(cli: Cli) -> None:
    assert cli("workers", "list").out.startswith("no worker is running")


def test_the_queue_tells_what_waits_runs_and_failed(cli: Cli, db: Database) -> None:
    fail_next(db)
    factories.index(db)
    factories.run(db)
    factories.register(db)
    (queue,) = cli("queue", "-o", "json").json
    assert [queue[name]["value"] for name in ("ready", "delayed", "processing", "failed")] == [1, 0, 1, 1]
    assert queue["indexedPerMinute"] > 0
    assert cli("queue").rows[0][1] == "1"
