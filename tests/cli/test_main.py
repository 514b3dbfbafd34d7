"""Promises of the command line itself: help, formats, errors, exit codes, interrupts."""

import json
import signal
import subprocess
import sys

import pytest
import yaml

from docgrid_cli.commands import COMMANDS
from docgrid_core.database import Database
from docgrid_core.settings import DatabaseSettings
from docgrid_core.testing import factories
from support import tables
from support.cli import Cli, environment_of
from support.races import wait_until

EVERY_COMMAND = [
    *(name for name in COMMANDS if name not in {"documents", "jobs", "workers", "models"}),
    *("documents list", "documents show", "documents delete", "workers list"),
    *("jobs list", "jobs show", "jobs watch", "jobs retry", "jobs cancel"),
    *("models list", "models add", "models activate", "models drop"),
]


@pytest.mark.parametrize("command", EVERY_COMMAND)
def test_every_command_has_help_in_plain_text(bare_cli: Cli, command: str) -> None:
    answer = bare_cli(*command.split(), "--help")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"Usage: docgrid {command} ")
    assert "\x1b" not in answer.out


def test_the_list_of_commands_needs_no_database_driver() -> None:
    code = "import sys; from docgrid_cli.main import run; run(['--help']); print('sqlalchemy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.splitlines()[-1] == "False"
    assert all(f"  {name} " in out for name in COMMANDS)


def test_the_version_is_told(bare_cli: Cli) -> None:
    answer = bare_cli("--version")
    assert (answer.code, answer.out.split()[0]) == (0, "docgrid")


def test_no_command_shows_the_help_and_is_wrong_use(bare_cli: Cli) -> None:
    assert (bare_cli().code, bare_cli("jobs").code) == (2, 2)
    assert bare_cli("jobs").err.startswith("Usage: docgrid jobs ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nonsense"], "No such command 'nonsense'. (see `docgrid --help`)"),
        (["jobs", "list", "--nonsense"], "No such option: --nonsense (see `docgrid jobs list --help`)"),
        (["jobs", "show"], "Missing argument 'ID'. (see `docgrid jobs show --help`)"),
        (["jobs", "show", "seven"], "seven is no id: write a number, or job/number"),
        (["jobs", "show", "9" * 19], "is no id"),
        (["jobs", "show", "document/7"], "document/7 is no id"),
        (["search", " "], "the question is empty"),
        (["search", "x", "-k", "51"], "Input should be less than or equal to 50"),
        (["queue", "-o", "xml"], "'xml' is not one of 'table', 'json', 'yaml', 'name'"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(bare_cli: Cli, arguments: list[str], told: str) -> None:
    answer = bare_cli(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err
    assert answer.err.count("\n") == 1


def test_a_refusal_is_one_line_with_its_code_and_exit_code_1(cli: Cli) -> None:
    answer = cli("documents", "show", "7")
    assert (answer.code, answer.out, answer.err) == (1, "", "DOCUMENT-001: there is no document 7\n")


@pytest.mark.parametrize("position", [0, 1, 3])
def test_debug_says_more_wherever_it_stands(cli: Cli, position: int) -> None:
    arguments = ["jobs", "show", "7"]
    arguments.insert(position, "--debug")
    lines = cli(*arguments).err.splitlines()
    assert lines[:2] == [
        "EMBEDDING-JOB-001: there is no job 7",
        "  class: docgrid_core.errors.JobNotFound",
    ]
    assert any("show_job" in line for line in lines[2:])


def test_debug_after_two_dashes_is_an_argument(cli: Cli) -> None:
    assert "--debug is no id" in cli("jobs", "show", "--", "--debug").err


def test_an_unexpected_error_shows_its_class_but_not_its_text(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("a row of the database")

    monkeypatch.setattr("docgrid_core.store.queries.queue_depth", fail)
    answer = cli("queue")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err == "COMMON-006: an unexpected error (LookupError): run it again with --debug\n"
    told = cli("queue", "--debug").err
    assert "class: builtins.LookupError" in told
    assert "a row" not in told


def test_without_any_installation_it_says_what_to_do(bare_cli: Cli) -> None:
    answer = bare_cli("queue")
    assert answer.code == 2
    assert answer.err == (
        "there is no database to work with: start the local stack with `docgrid up`,"
        " or set DOCGRID_DATABASE_URL\n"
    )


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        ("mysql://somewhere", 2, "DOCGRID_DATABASE_URL=(secret): must be postgresql://"),
        ("postgresql://u:hidden@127.0.0.1:1/x", 1, "COMMON-005: the database can not be reached, try again"),
    ],
)
def test_a_wrong_address_is_one_line_without_the_password(
    bare_cli: Cli, url: str, code: int, told: str
) -> None:
    bare_cli.environment["DOCGRID_DATABASE_URL"] = url
    for more in ([], ["--debug"]):
        answer = bare_cli("jobs", "list", *more)
        assert (answer.code, answer.out) == (code, "")
        assert answer.err.startswith(told)
        assert "hidden" not in answer.err


def test_a_database_without_schema_says_what_to_do(
    bare_cli: Cli, empty_database_settings: DatabaseSettings
) -> None:
    bare_cli.environment |= environment_of(empty_database_settings)
    answer = bare_cli("jobs", "list")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.startswith("DATABASE-SETUP: the database has no DocGrid schema")
    assert "docgrid migrate" in answer.err


def test_only_the_local_stack_needs_the_packages_of_the_local_stack(cli: Cli) -> None:
    code = "import sys; sys.modules['psutil'] = None; from docgrid_cli.main import run; sys.exit(run(sys.argv[1:]))"

    def without_psutil(command: str, environment: dict[str, str]) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", code, command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    assert without_psutil("queue", cli.environment) == (0, "")
    needs = "`docgrid up` needs the package psutil: install docgrid[local]\n"
    assert without_psutil("up", cli.environment) == (2, needs)
    del cli.environment["DOCGRID_DATABASE_URL"]
    code_without_database, told = without_psutil("queue", cli.environment)
    assert code_without_database == 2
    assert told.startswith("there is no database to work with")


def test_every_format_says_the_same(cli: Cli, db: Database) -> None:
    factories.index(db, "report")
    answer = cli("documents", "list", "-o", "json")
    (shown,) = answer.json
    assert (shown["title"], shown["status"], shown["currentVersionNo"]) == ("report", "INDEXED", 1)
    assert shown["indexedAt"].endswith("Z")
    assert yaml.safe_load(cli("documents", "list", "-o", "yaml").out) == answer.json
    assert cli("documents", "list", "-o", "name").out == f"document/{shown['id']}\n"
    assert "report" in cli("documents", "list").out


def test_the_format_can_stand_before_the_command_and_after_it(cli: Cli) -> None:
    for arguments in (["-o", "json", "jobs", "list"], ["-o", "yaml", "jobs", "list", "-o", "json"]):
        assert json.loads(cli(*arguments).out) == []


def test_a_result_that_is_no_terminal_has_no_colours_and_whole_lines(cli: Cli, db: Database) -> None:
    title = "a long title " * 30
    factories.register(db, title)
    out = cli("jobs", "list").out
    assert title.strip() in out
    assert "\x1b" not in out
    assert all(line == line.rstrip() for line in out.splitlines())


def test_control_characters_of_a_title_never_reach_the_terminal(cli: Cli, db: Database) -> None:
    factories.register(db, "clear\x1b[2Jscreen\nnew line")
    out = cli("jobs", "list").out
    assert "\x1b" not in out
    assert "clear [2Jscreen new line" in out


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_reader_that_goes_away_ends_the_command_quietly(cli: Cli, output: str) -> None:
    with cli.start("queue", "-o", output) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 141


def test_ctrl_c_ends_a_command_quietly(cli: Cli, db: Database) -> None:
    factories.register(db, "report")
    with cli.start("jobs", "watch") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "report" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == ""
    wait_until(lambda: sessions(db) == 0)


def test_it_answers_to_its_name_as_a_plugin_of_kubectl(
    bare_cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/kubectl-docgrid"])
    assert bare_cli("jobs", "--nonsense").err.endswith("(see `kubectl docgrid jobs --help`)\n")


def sessions(db: Database) -> int:
    """Return how many sessions of a command the database has."""
    found = tables.value(db, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'docgrid-cli'")
    return int(found)
