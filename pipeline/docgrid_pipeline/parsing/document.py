"""What every format is turned into, and what the chunker works from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TITLE_LIMIT = 500
"""Code points of a title that are kept: a title is repeated in every chunk of its section."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a document that no chunk crosses: a page or a section.

    The document's text is its segments joined by one LF each; chunk offsets count in that text.
    """

    text: str = field(repr=False)
    page_no: int | None = None
    section_title: str | None = field(default=None, repr=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ParsedDocument:
    """The text of a document in reading order, and the title it gives itself."""

    title: str | None = field(repr=False)
    segments: tuple[Segment, ...]


class Outline:
    """The path of headings that are open while a document is read from top to bottom."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    def enter(self, level: int, heading: str) -> None:
        """Open a section; it closes all that are as deep or deeper."""
        self._open = [(depth, text) for depth, text in self._open if depth < level]
        self._open.append((level, heading.strip()[:TITLE_LIMIT]))

    def segment(self, text: str) -> Segment:
        """Return `text` as a segment of the section that is open now."""
        path = [heading for _, heading in self._open if heading]
        title = self._open[-1][1] or None if self._open else None
        return Segment(text, section_title=title, metadata={"heading_path": path} if path else {})
