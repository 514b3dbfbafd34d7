"""Reads TXT: strict UTF-8, nothing changed but a leading BOM and the line ends."""

from docgrid_core.errors import ContentNotUtf8
from docgrid_pipeline.parsing.document import ParsedDocument, Segment


def decode(content: bytes) -> str:
    """Return the text of UTF-8 bytes without one leading BOM, every line ending in LF.

    Raises `ContentNotUtf8` with the offset of the first byte that is not UTF-8.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        offset = error.start
    else:
        return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    # Raised out here: the codec's error carries the whole document.
    raise ContentNotUtf8(f"the text is not UTF-8: the byte at offset {offset} is not valid")


def parse_text(content: bytes) -> ParsedDocument:
    """Parse plain text as one segment."""
    return ParsedDocument(title=None, segments=(Segment(decode(content)),))
