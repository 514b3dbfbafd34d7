"""Promises of `docgrid migrate`, `models`, `maintain`, `prune` and `doctor`."""

import signal
from datetime import timedelta
from pathlib import Path

import pytest

from docgrid_core.database import Database
from docgrid_core.jobs import JobStatus, StopReason
from docgrid_core.settings import DatabaseSettings
from docgrid_core.store import workers
from docgrid_core.testing import factories
from docgrid_core.testing.factories import Stage
from support import tables
from support.cli import Cli, environment_of
from support.races import wait_until
from support.servers import embedded_postgres
from support.site import Site

# --- migrate ----------------------------------------------------------------------------------------


def test_migrate_creates_the_schema_once(bare_cli: Cli, empty_database_settings: DatabaseSettings) -> None:
    bare_cli.environment |= environment_of(empty_database_settings)
    first, second = bare_cli("migrate"), bare_cli("migrate")
    assert (first.code, second.code) == (0, 0)
    assert first.out.startswith("the schema was created at revision 0001")
    assert second.out == "the schema is at revision 0001 already\n"
    assert bare_cli("jobs", "list").out == "no jobs\n"


def test_migrate_refuses_a_schema_of_a_newer_release(cli: Cli, db: Database) -> None:
    tables.change(db, "UPDATE alembic_version SET version_num = '9999'")
    for command in ("migrate", "queue"):
        answer = cli(command)
        assert (answer.code, answer.out) == (1, "")
        assert "schema revision 9999, which this release does not know" in answer.err


# --- models -----------------------------------------------------------------------------------------


def test_a_model_is_added_activated_and_the_old_one_dropped(cli: Cli) -> None:
    added = cli("models", "add", "big", "-d", "12", "--version", "2", "--config", '{"input_type": true}')
    assert added.code == 0
    assert cli("models", "list", "-o", "name").out == "model/tiny\nmodel/big\n"
    assert cli("models", "activate", "big").code == 0
    by_name = {row["name"]: row for row in cli("models", "list", "-o", "json").json}
    assert (by_name["big"]["isActive"], by_name["tiny"]["isActive"]) == (True, False)
    assert by_name["big"]["config"] == {"input_type": True}
    asked = cli.run("models", "drop", "tiny")
    assert (asked.code, "add --yes" in asked.err) == (2, True)
    assert cli("models", "drop", "tiny", "--yes").out == "model tiny dropped\n"
    assert cli("models", "list", "-o", "name").out == "model/big\n"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["activate", "nobody"], 1, "EMBEDDING-MODEL-002: there is no embedding model nobody"),
        (["drop", "nobody", "--yes"], 1, "EMBEDDING-MODEL-002: there is no embedding model nobody"),
        (["drop", "tiny", "--yes"], 1, "EMBEDDING-MODEL-003: model tiny is active"),
        (["add", "tiny", "-d", "9", "--provider", "builtin", "--version", "1"], 1, "EMBEDDING-MODEL-003: "),
        (["add", "x", "-d", "4001"], 1, "COMMON-002: the dimension must be 1 to 4000, not 4001"),
        (["add", "x", "-d", "8", "--config", "[1]"], 2, "--config [1] is no JSON object"),
        (["add", "x"], 2, "Missing option '--dimension'"),
    ],
)
def test_what_can_not_be_done_with_a_model_is_told(
    cli: Cli, arguments: list[str], code: int, told: str
) -> None:
    answer = cli("models", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert told in answer.err


# --- maintain and prune -----------------------------------------------------------------------------


def test_one_tick_recovers_what_an_ended_worker_left(cli: Cli, db: Database) -> None:
    worker = factories.register_worker(db, pod_uid="gone")
    execution = factories.run(db, Stage.PARSE_PREPARED, worker=worker)
    workers.mark_pod_ended(db, pod_uid="gone", reason=StopReason.ERROR)
    answer = cli.run("maintain", "--once", "-o", "json")
    assert (answer.code, answer.json["recovered"]["retried"]) == (0, 1)
    assert answer.json["recovered"]["pools"][0]["reason"] == "Error"
    assert tables.job(db, execution.document.job_id).status == JobStatus.PENDING
    assert "jobs retried             0" in cli("maintain", "--once").out


def test_maintain_recovers_until_it_is_told_to_stop(cli: Cli, db: Database) -> None:
    execution = factories.run(db, worker=factories.register_worker(db, dead_threshold=timedelta(seconds=1)))
    cli.environment |= {"DOCGRID_MAINTENANCE_INTERVAL": "100ms"}
    with cli.start("maintain") as process:
        wait_until(lambda: tables.job(db, execution.document.job_id).status == JobStatus.PENDING)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")
    assert '"event": "workers or jobs recovered"' in out
    assert tables.worker(db, execution.worker.id).stop_reason == StopReason.HEARTBEAT_OVERDUE


def test_prune_deletes_what_is_older_than_it_has_to_be(cli: Cli, db: Database) -> None:
    factories.index(db)
    cli.environment |= {"DOCGRID_MAINTENANCE_KEEP_INDEXED": "1h"}
    assert cli("prune", "-o", "json").json["jobs"] == 0
    cli.environment |= {"DOCGRID_MAINTENANCE_KEEP_INDEXED": "1ms"}
    answer = cli("prune")
    assert answer.code == 0
    assert answer.out.splitlines()[:2] == ["deleted", "  jobs        1"]
    assert cli("jobs", "list", "-o", "json").json == []


def test_a_wrong_setting_is_named_with_value_and_rule(cli: Cli) -> None:
    cli.environment |= {"DOCGRID_MAINTENANCE_INTERVAL": "2 seconds"}
    answer = cli("maintain", "--once")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("DOCGRID_MAINTENANCE_INTERVAL=2 seconds: must be a duration like 30s")


# --- doctor -----------------------------------------------------------------------------------------


def verdicts(cli: Cli, *options: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Return the exit code, and verdict and text for each part."""
    answer = cli("doctor", "-o", "json", *options)
    return answer.code, {row["part"]: (row["verdict"], row["text"]) for row in answer.json}


def test_doctor_finds_a_whole_installation_whole(site_cli: Cli, site: Site) -> None:
    site.start_registered()
    code, found = verdicts(site_cli, "--deep")
    assert code == 0
    assert {verdict for verdict, _ in found.values()} == {"ok"}
    assert found["database"][1].startswith("PostgreSQL ")
    assert "pgvector 0." in found["database"][1]
    assert found["schema"][1] == "revision 0001"
    assert found["workers"][1] == "1 running"
    assert "invariants" in found


def test_doctor_says_that_no_worker_runs_without_calling_it_a_fault(site_cli: Cli) -> None:
    code, found = verdicts(site_cli)
    assert (code, found["workers"][0]) == (0, "note")


def test_doctor_says_what_to_fix(site_cli: Cli, site: Site) -> None:
    tables.change(site.db, "UPDATE embedding_models SET is_active = false, is_searchable = false")
    site_cli.environment |= {
        "DOCGRID_STORAGE_BUCKET": "no-such-bucket",
        "DOCGRID_WORKER_CONCURRENCY": "4",
    }
    code, found = verdicts(site_cli)
    assert code == 1
    assert found["settings"] == (
        "FIX",
        "no setting is called DOCGRID_WORKER_CONCURRENCY: correct or unset it",
    )
    assert found["object store"][0] == "FIX"
    assert (
        "DOCGRID_STORAGE_BUCKET=no-such-bucket: the object store has no such bucket"
        in found["object store"][1]
    )
    assert "docgrid models activate" in found["model"][1]


def test_doctor_finds_servers_that_are_away(site_cli: Cli) -> None:
    site_cli.environment |= {
        "DOCGRID_DATABASE_URL": "postgresql://docgrid:hidden@127.0.0.1:1/docgrid",
        "DOCGRID_STORAGE_ENDPOINT": "127.0.0.1:1",
    }
    code, found = verdicts(site_cli)
    assert code == 1
    assert "DOCGRID_DATABASE_URL" in found["database"][1]
    assert "DOCGRID_STORAGE_ENDPOINT" in found["object store"][1]
    assert found["model"] == ("unchecked", "needs the database")
    assert "hidden" not in str(found)


def test_doctor_finds_an_embedding_server_that_is_away(site_cli: Cli, site: Site) -> None:
    tables.change(site.db, "UPDATE embedding_models SET provider = 'openai' WHERE is_active")
    site_cli.environment |= {
        "DOCGRID_EMBEDDING_PROVIDER": "openai",
        "DOCGRID_EMBEDDING_BASE_URL": "http://127.0.0.1:1",
    }
    code, found = verdicts(site_cli)
    assert (code, found["embedding server"][0]) == (1, "FIX")
    assert "EMBEDDING-PROVIDER-001" in found["embedding server"][1]
    assert "DOCGRID_EMBEDDING_BASE_URL" in found["embedding server"][1]


def test_doctor_finds_a_database_without_schema(
    site_cli: Cli, empty_database_settings: DatabaseSettings
) -> None:
    site_cli.environment |= environment_of(empty_database_settings)
    code, found = verdicts(site_cli)
    assert (code, found["database"][0]) == (1, "ok")
    assert "docgrid migrate" in found["schema"][1]


def test_a_deep_look_finds_rows_that_disagree(cli: Cli, db: Database) -> None:
    factories.index(db)
    tables.change(db, "DELETE FROM indexing_events WHERE event_type = 'INDEXED'")
    code, found = verdicts(cli, "--deep")
    assert (code, found["invariants"][0]) == (1, "FIX")
    assert "job 1" in found["invariants"][1]


def test_a_wrong_password_says_what_to_check(bare_cli: Cli, tmp_path: Path) -> None:
    last_words = tmp_path / "termination-log"
    last_words.touch()
    with embedded_postgres() as server:
        url = server.url("postgres")
        password = url.partition("@")[0].rpartition(":")[2]
        bare_cli.environment |= {
            "DOCGRID_DATABASE_URL": url.replace(f":{password}@", ":wrong@"),
            "DOCGRID_LOG_TERMINATION_FILE": str(last_words),
        }
        for command in (["queue"], ["migrate"]):
            answer = bare_cli(*command)
            assert (answer.code, answer.out) == (1, "")
            assert "the database refuses the password: check user and password" in answer.err
            assert answer.err.count("\n") == 1
        # The command of the operator's init container leaves it where a pod's status shows it.
        assert last_words.read_text() == answer.err.rstrip("\n")
