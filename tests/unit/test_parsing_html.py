"""HTML gives what a reader would see, in reading order, and nothing else."""

import time

import pytest

from docgrid_pipeline.parsing.document import ParsedDocument
from docgrid_pipeline.parsing.html import parse_html


def parsed(html: str) -> ParsedDocument:
    return parse_html(html.encode())


def text_of(html: str) -> str:
    return "\n".join(segment.text for segment in parsed(html).segments)


def test_blocks_end_lines_and_inline_elements_do_not() -> None:
    html = "<p>One <b>bo</b>ld\n  word</p><div>two<br>three</div><ul><li>a<li>b</ul>tail"
    assert text_of(html) == "One bold word\ntwo\nthree\na\nb\ntail"


@pytest.mark.parametrize(
    "hidden",
    [
        "<script>no()</script>",
        "<style>no{}</style>",
        "<noscript>no</noscript>",
        "<template>no</template>",
        "<!-- no -->",
        "<div hidden>no<p>no</p></div>",
        "<span style='color:red; DISPLAY: none'>no</span>",
        "<iframe src='http://example.invalid/'>no</iframe>",
        "<svg><title>no</title><text>no</text></svg>",
    ],
)
def test_what_a_reader_does_not_see_is_not_read(hidden: str) -> None:
    assert text_of(f"<p>before</p>{hidden}<p>after</p>") == "before\nafter"


def test_headings_open_sections_with_their_path() -> None:
    document = parsed("<p>intro<h1>A <i>b</i></h1><p>one<h3>C</h3>two<h2>D</h2>three")
    assert [(segment.section_title, segment.text) for segment in document.segments] == [
        (None, "intro"),
        ("A b", "A b\none"),
        ("C", "C\ntwo"),
        ("D", "D\nthree"),
    ]
    assert document.segments[2].metadata == {"heading_path": ["A b", "C"]}
    assert document.segments[3].metadata == {"heading_path": ["A b", "D"]}


def test_the_title_is_the_title_element_else_the_first_heading() -> None:
    assert parsed("<title> The\n title </title><h1>Other</h1>").title == "The title"
    assert parsed("<title> </title><p>x<h2>First</h2><h1>Second</h1>").title == "First"
    assert parsed("<p>x").title is None


def test_table_rows_are_lines_and_cells_are_separated_by_tabs() -> None:
    head = "<tr><th>A</th><th>B</th><th>C</th></tr>"
    row = "<tr><td></td><td>1</td><td> 2 <b>3</b></td></tr>"
    assert text_of(f"<table>{head}{row}</table>") == "A\tB\tC\n\t1\t2 3"


def test_white_space_counts_in_preformatted_text_only() -> None:
    assert text_of("<p>a   b</p><pre>if x:\n    y</pre><p>c\t d</p>") == "a b\nif x:\n    y\nc d"


def test_character_references_are_decoded_and_broken_ones_do_no_harm() -> None:
    assert text_of("<p>a &amp; b &#128512; &#xD800; &#0; &nosuch;") == "a & b 😀 \ufffd \ufffd &nosuch;"


def test_broken_markup_is_read_as_browsers_do() -> None:
    assert text_of("<b><p>one</b> two</i><li>three<p") == "one two\nthree"


def test_elements_nested_deeper_than_the_stack_of_the_interpreter_are_read() -> None:
    assert text_of("<div>" * 5_000 + "deep" + "</div>" * 5_000) == "deep"


def test_a_row_of_many_cells_costs_no_more_than_its_length() -> None:
    started = time.process_time()
    parsed("<p>x<table><tr>" + "<td>" * 100_000)
    assert time.process_time() - started < 5
