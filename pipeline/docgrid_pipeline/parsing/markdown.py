"""Reads MD: the text as it is written, cut into sections at its ATX headings.

Rules: CommonMark 0.31, 4.2 (ATX headings) and 4.5 (fenced code blocks). No line is dropped or changed, so
that the document can be rebuilt from the offsets of its chunks.
"""

import re

from docgrid_pipeline.parsing.document import TITLE_LIMIT, Outline, ParsedDocument, Segment
from docgrid_pipeline.parsing.text import decode

_HEADING = re.compile(r" {0,3}(?P<marks>#{1,6})(?:[ \t]+(?P<text>.*))?")
_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<info>.*)")


def parse_markdown(content: bytes) -> ParsedDocument:
    """Parse Markdown; each heading opens a segment that begins with the heading's own line."""
    outline = Outline()
    title: str | None = None
    segments: list[Segment] = []
    lines: list[str] = []
    fence = _Fence()
    for line in decode(content).split("\n"):
        heading = None if fence.covers(line) else _heading(line)
        if heading is not None:
            if lines:
                segments.append(outline.segment("\n".join(lines)))
            lines = []
            outline.enter(*heading)
            title = title or heading[1][:TITLE_LIMIT] or None
        lines.append(line)
    segments.append(outline.segment("\n".join(lines)))
    return ParsedDocument(title, tuple(segments))


def _heading(line: str) -> tuple[int, str] | None:
    """Return level and text of an ATX heading, None for any other line."""
    match = _HEADING.fullmatch(line)
    if match is None:
        return None
    return len(match["marks"]), _without_closing_marks((match["text"] or "").strip(" \t"))


def _without_closing_marks(text: str) -> str:
    """Drop a run of `#` at the end if white space or nothing is before it."""
    # Not a regular expression: this one stays linear on a line of a million blanks.
    rest = text.rstrip("#")
    return rest.rstrip(" \t") if not rest or rest[-1] in " \t" else text


class _Fence:
    """Whether the lines seen so far have left a code block open: a `#` in it is no heading."""

    def __init__(self) -> None:
        self._marks = ""

    def covers(self, line: str) -> bool:
        """Take the next line; tell whether it belongs to a code block, its fences included."""
        match = _FENCE.fullmatch(line)
        if not self._marks:
            if match is None or (match["marks"][0] == "`" and "`" in match["info"]):
                return False
            self._marks = match["marks"]
        elif match is not None and match["marks"].startswith(self._marks) and not match["info"].strip():
            self._marks = ""
        return True
