from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from docgrid_core.durations import Duration, format_duration, parse_duration

ANY_DURATION = TypeAdapter[timedelta](Duration)
RULE = "must be a duration like 30s, 5m or 1h30m"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("250ms", 0.25),
        ("30s", 30),
        ("1.5s", 1.5),
        ("5m", 300),
        ("1h30m", 5400),
        ("90m", 5400),
        ("1h0m0.5s", 3600.5),
        ("30m1h", 5400),
    ],
)
def test_go_syntax_is_understood(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "30", "s", "-5s", "5 s", "1d", "1H", ".5s", "1.s", "5s\n", "٣s", "5sx", "1e3s", "NaN"],
)
def test_anything_else_is_refused_with_the_rule(text: str) -> None:
    with pytest.raises(ValueError, match=RULE):
        parse_duration(text)


@pytest.mark.parametrize("text", ["87601h", "999999999999999999999h", f"{'9' * 400}ms"])
def test_a_duration_of_over_ten_years_is_refused_and_never_overflows(text: str) -> None:
    with pytest.raises(ValueError, match="at most ten years"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.25, "250ms"), (90, "1m30s"), (3600, "1h"), (90_061.001, "25h1m1s1ms")]
)
def test_a_duration_is_written_without_zero_parts(seconds: float, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text


@given(st.integers(min_value=0, max_value=10 * 365 * 24 * 3600 * 1000))
def test_what_is_written_is_read_back_as_the_same(milliseconds: int) -> None:
    value = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(value)) == value


def test_a_field_takes_text_or_a_timedelta_and_gives_text_back_in_json() -> None:
    assert ANY_DURATION.validate_python(" 5m ") == timedelta(minutes=5)
    assert ANY_DURATION.validate_python(timedelta(minutes=5)) == timedelta(minutes=5)
    assert ANY_DURATION.dump_json(timedelta(minutes=5)) == b'"5m"'


@pytest.mark.parametrize("value", [30, 0.5, None, ["5m"]])
def test_a_field_does_not_guess_the_unit_of_a_number(value: object) -> None:
    with pytest.raises(ValidationError, match=RULE):
        ANY_DURATION.validate_python(value)
