"""Promises of how results are printed."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from docgrid_cli.advice import ADVICE
from docgrid_cli.options import asked_by
from docgrid_cli.render import Column, Format, View, age, plain, show_all, show_facts, source_of, span
from docgrid_cli.terminal import printable
from docgrid_core.jobs import FailureType, JobStatus


@dataclass(frozen=True)
class Row:
    """What these tests print."""

    job_id: int
    some_long_name: str | None


VIEW = View[Row](
    columns=[
        Column("ID", lambda row: row.job_id, right=True),
        Column("NAME", lambda row: row.some_long_name, wide=True),
    ],
    name=lambda row: f"row/{row.job_id}",
    empty="nothing there",
)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")],
)
def test_a_length_of_time_is_shown_in_its_largest_unit(seconds: int, shown: str) -> None:
    assert span(timedelta(seconds=seconds)) == shown


def test_a_moment_is_shown_as_its_age() -> None:
    assert age(datetime.now(UTC) - timedelta(minutes=5)) == "5m"
    assert age(None) == "-"


def test_json_has_camel_case_keys_and_utc_times() -> None:
    moment = datetime(2026, 1, 2, 4, 4, 5, 6, tzinfo=UTC).astimezone()
    value = {"at": moment, "status": JobStatus.FAILED, "of": [Row(1, None)], "for": timedelta(seconds=1.5)}
    assert plain(value) == {
        "at": "2026-01-02T04:04:05.000006Z",
        "status": "FAILED",
        "of": [{"jobId": 1, "someLongName": None}],
        "for": 1.5,
    }
    assert plain(UUID(int=1)) == "00000000-0000-0000-0000-000000000001"


def test_a_value_that_json_does_not_know_is_a_fault_of_the_code() -> None:
    with pytest.raises(TypeError, match="a set can not be printed"):
        plain({1, 2})


def test_a_table_is_aligned_also_with_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    show_all([Row(1, "가나다"), Row(10, None), Row(2, "[red]x[/red]")], VIEW, Format.TABLE)
    assert capsys.readouterr().out == "ID  NAME\n 1  가나다\n10  -\n 2  [red]x[/red]\n"


def test_an_empty_list_says_so_to_a_person_and_is_empty_for_a_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_all([], VIEW, Format.TABLE)
    assert capsys.readouterr().out == "nothing there\n"
    show_all([], VIEW, Format.JSON)
    assert capsys.readouterr().out == "[]\n"
    show_all([], VIEW, Format.NAME)
    assert capsys.readouterr().out == ""


def test_facts_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    show_facts("job 1", {"reason": None, "title": "", "retries": 0, "source": "a"})
    assert capsys.readouterr().out == "job 1\n  retries  0\n  source   a\n"


def test_what_comes_from_outside_stays_on_its_line() -> None:
    assert printable("a\x1b[1mb\r\nc\x9bd\u202ee") == "a [1mb  c d e"


def test_a_local_source_is_shown_as_its_path() -> None:
    path = Path("/notes/가을 하늘.md")
    assert source_of(path.as_uri()) == str(path)
    assert source_of("s3://bucket/a%20b") == "s3://bucket/a%20b"


def test_there_is_advice_for_every_failure_and_it_names_the_job() -> None:
    assert ADVICE.keys() == set(FailureType)
    told = [text.format(job=7) for text in ADVICE.values()]
    assert all(text.endswith(".") for text in told)
    assert sum("docgrid jobs retry 7" in text for text in told) > 5


def test_who_asked_is_told_even_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked_by()
    monkeypatch.setattr("getpass.getuser", lambda: (_ for _ in ()).throw(KeyError("uid")))
    assert asked_by() == "unknown"
