"""Markdown is cut at its headings and nowhere else, and no character of it is lost."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docgrid_pipeline.parsing.document import TITLE_LIMIT, Segment
from docgrid_pipeline.parsing.markdown import parse_markdown


def sections(text: str) -> tuple[Segment, ...]:
    return parse_markdown(text.encode()).segments


def titles(text: str) -> list[str | None]:
    return [section.section_title for section in sections(text)]


pieces = st.sampled_from(["# A", "## B ##", "```", "~~~~", "    # code", "text", "", "#no", "\t", " - x"])


@given(st.lists(pieces, max_size=12).map("\n".join))
def test_the_segments_joined_by_line_feeds_are_the_document(text: str) -> None:
    assert "\n".join(section.text for section in sections(text)) == text


def test_each_heading_opens_a_section_that_begins_with_its_own_line() -> None:
    text = "before\n# One\na\n## Two\nb\n"
    assert [section.text for section in sections(text)] == ["before", "# One\na", "## Two\nb\n"]
    assert titles(text) == [None, "One", "Two"]


def test_the_heading_path_names_all_open_sections() -> None:
    text = "# A\n## B\n#### C\n## D\n# E"
    paths = [section.metadata["heading_path"] for section in sections(text)]
    assert paths == [["A"], ["A", "B"], ["A", "B", "C"], ["A", "D"], ["E"]]


def test_text_before_the_first_heading_has_no_path() -> None:
    assert sections("text\n# A")[0].metadata == {}


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# A", "A"),
        ("   ###### A", "A"),
        ("#\tA", "A"),
        ("# A ##", "A"),
        ("# A#", "A#"),
        ("# A \\#", "A \\#"),
        ("## A # b ###  ", "A # b"),
        ("#", None),
        ("## ##", None),
    ],
)
def test_headings_are_read_as_commonmark_does(line: str, title: str | None) -> None:
    assert titles(f"x\n{line}\n")[1:] == [title]


@pytest.mark.parametrize("line", ["#A", "####### A", "    # A", "\\# A", "A #", "\t# A"])
def test_lines_that_only_look_like_headings_open_nothing(line: str) -> None:
    assert titles(f"x\n{line}\n") == [None]


@pytest.mark.parametrize(
    "block",
    [
        "```\n# no\n```",
        "~~~ python\n# no\n~~~",
        "````\n```\n# no\n````",
        "```\n~~~\n# no\n```  ",
        "  ```\n# no\n``` x\n# no\n   ```",
    ],
)
def test_a_heading_inside_a_fence_is_code_and_the_next_after_it_counts(block: str) -> None:
    assert titles(f"x\n{block}\n# Yes") == [None, "Yes"]


def test_a_fence_that_is_never_closed_covers_the_rest() -> None:
    assert titles("# A\n```\n# no\n# no") == ["A"]


def test_inline_code_does_not_open_a_fence() -> None:
    assert titles("``` a `b` ```\n# A") == [None, "A"]


def test_the_title_is_the_first_heading_with_text() -> None:
    assert parse_markdown(b"x\n#\n## Two\n# One\n").title == "Two"
    assert parse_markdown(b"no heading").title is None


def test_an_endless_heading_does_not_fill_every_chunk_of_its_section() -> None:
    document = parse_markdown(b"# " + b"x" * 10_000)
    assert len(document.title or "") == TITLE_LIMIT
    assert len(document.segments[0].section_title or "") == TITLE_LIMIT


def test_hostile_lines_cost_no_more_than_their_length() -> None:
    hostile = b"# x" + b" " * 1_000_000 + b"y\n" + b"`" * 1_000_000 + b"\n# " + b"# " * 500_000 + b"z"
    started = time.process_time()
    parse_markdown(hostile)
    assert time.process_time() - started < 2
