"""Reads HTML: what a reader would see, without scripts, styles or anything from the network.

Block elements end a line, headings open sections, cells of a table row are separated by TAB. Parsing itself
is selectolax (the Lexbor engine), which accepts any input as browsers do.
"""

import re
from collections.abc import Iterator

from selectolax.lexbor import LexborHTMLParser, LexborNode

from docgrid_core.errors import ContentEmpty
from docgrid_pipeline.parsing.document import TITLE_LIMIT, Outline, ParsedDocument, Segment
from docgrid_pipeline.parsing.text import decode

_INVISIBLE = frozenset({
    "head", "script", "style", "noscript", "template", "iframe", "object", "embed", "canvas", "audio",
    "video", "svg", "math", "datalist",
})  # fmt: skip
_BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd", "details",
    "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "h1",
    "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr", "html", "legend", "li", "main", "menu",
    "nav", "ol", "optgroup", "option", "p", "pre", "search", "section", "select", "summary", "table",
    "tbody", "tfoot", "thead", "tr", "ul",
})  # fmt: skip
_HEADINGS = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6}
_CELLS = frozenset({"td", "th"})
_AS_WRITTEN = frozenset({"pre", "textarea"})
_HIDDEN_STYLE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*hidden)\b", re.IGNORECASE)
_SPACES = re.compile(r"[ \t\n\r\f]+")


def parse_html(content: bytes) -> ParsedDocument:
    """Parse HTML; each heading opens a segment that begins with the heading's own line."""
    text = decode(content)
    if not text.strip():
        raise ContentEmpty("the document has no text")
    tree = LexborHTMLParser(text)
    reader = _Reader()
    if tree.root is not None:
        for node, entering in _walk(tree.root):
            (reader.enter if entering else reader.leave)(node)
    segments = reader.finish()
    return ParsedDocument(_title(tree) or reader.first_heading, segments)


def _title(tree: LexborHTMLParser) -> str | None:
    node = tree.css_first("head > title")
    return None if node is None else _collapse(node.text())[:TITLE_LIMIT] or None


def _collapse(text: str) -> str:
    return _SPACES.sub(" ", text).strip(" ")


def _walk(root: LexborNode) -> Iterator[tuple[LexborNode, bool]]:
    """Yield every visible node twice: when it is entered and when it is left.

    Without recursion: a document may nest its elements as deep as it likes.
    """
    stack: list[tuple[LexborNode, bool]] = [(root, True)]
    while stack:
        node, entering = stack.pop()
        if entering and not _is_visible(node):
            if node.next is not None and node is not root:
                stack.append((node.next, True))
            continue
        yield node, entering
        if entering:
            stack.append((node, False))
            if node.first_child is not None:
                stack.append((node.first_child, True))
        elif node.next is not None and node is not root:
            stack.append((node.next, True))


def _is_visible(node: LexborNode) -> bool:
    if node.tag in _INVISIBLE:
        return False
    attributes = node.attributes if node.is_element_node else {}
    return "hidden" not in attributes and not _HIDDEN_STYLE.search(attributes.get("style") or "")


class _Reader:
    """Turns the walk into lines and the lines into segments."""

    def __init__(self) -> None:
        self.first_heading: str | None = None
        self._outline = Outline()
        self._segments: list[Segment] = []
        self._lines: list[str] = []
        self._line: list[str] = []
        self._as_written = 0  # depth of elements whose white space counts
        self._first_cell = True  # of the present table row

    def enter(self, node: LexborNode) -> None:
        tag = node.tag or ""
        if tag == "-text":
            self._add(node.text_content or "")
            return
        if tag in _BLOCKS:
            self._end_line()
        if tag in _HEADINGS:
            self._end_segment()
        if tag in _AS_WRITTEN:
            self._as_written += 1
        if tag == "tr":
            self._first_cell = True
        if tag in _CELLS:
            self._line.append("" if self._first_cell else "\t")
            self._first_cell = False

    def leave(self, node: LexborNode) -> None:
        tag = node.tag or ""
        if tag in _BLOCKS:
            self._end_line()
        if tag in _AS_WRITTEN:
            self._as_written -= 1
        if tag in _HEADINGS:
            self._open_section(_HEADINGS[tag])

    def finish(self) -> tuple[Segment, ...]:
        self._end_line()
        self._end_segment()
        return tuple(self._segments)

    def _add(self, text: str) -> None:
        if not self._as_written:
            self._line.append(_SPACES.sub(" ", text))
            return
        first, *others = text.split("\n")
        self._line.append(first)
        for line in others:
            self._end_line()
            self._line.append(line)

    def _end_line(self) -> None:
        text = "".join(self._line)
        self._line = []
        if not self._as_written:
            text = re.sub(" *\t *", "\t", re.sub("  +", " ", text)).strip(" ")
        if text.strip():
            self._lines.append(text.rstrip())

    def _end_segment(self) -> None:
        if self._lines:
            self._segments.append(self._outline.segment("\n".join(self._lines)))
        self._lines = []

    def _open_section(self, level: int) -> None:
        heading = " ".join(self._lines)
        self._outline.enter(level, heading)
        self.first_heading = self.first_heading or heading[:TITLE_LIMIT] or None
