"""Turns the bytes of a document into text with sections: one module for each format.

The parse stage calls `parse`; whoever registers a document calls `document_type_of`. A format that is added
gets a module, a line in `_PARSERS` and its names in `_SUFFIXES` and `_CONTENT_TYPES`.
"""

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from docgrid_core.errors import ContentEmpty, ContentUnsupported
from docgrid_core.jobs import DocumentType
from docgrid_core.text import clean, clean_json
from docgrid_pipeline.parsing.document import ParsedDocument, Segment
from docgrid_pipeline.parsing.html import parse_html
from docgrid_pipeline.parsing.markdown import parse_markdown
from docgrid_pipeline.parsing.text import parse_text

__all__ = ["HEAD_SIZE", "SUPPORTED", "ParsedDocument", "Segment", "document_type_of", "parse"]

HEAD_SIZE = 512
"""Bytes of a document's beginning that are enough for `document_type_of`."""

_PARSERS: dict[DocumentType, Callable[[bytes], ParsedDocument]] = {
    DocumentType.TXT: parse_text,
    DocumentType.MD: parse_markdown,
    DocumentType.HTML: parse_html,
}

SUPPORTED = tuple(_PARSERS)
"""The formats that this release reads; the schema knows more."""

_SUFFIXES = {
    ".txt": DocumentType.TXT,
    ".text": DocumentType.TXT,
    ".md": DocumentType.MD,
    ".markdown": DocumentType.MD,
    ".html": DocumentType.HTML,
    ".htm": DocumentType.HTML,
    ".xhtml": DocumentType.HTML,
    ".pdf": DocumentType.PDF,
    ".docx": DocumentType.DOCX,
}
_CONTENT_TYPES = {
    "text/plain": DocumentType.TXT,
    "text/markdown": DocumentType.MD,
    "text/x-markdown": DocumentType.MD,
    "text/html": DocumentType.HTML,
    "application/xhtml+xml": DocumentType.HTML,
    "application/pdf": DocumentType.PDF,
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": DocumentType.DOCX,
}


def document_type_of(filename: str, content_type: str | None, head: bytes) -> DocumentType:
    """Tell the format of a document by its first bytes, its name and its declared type, in this order.

    The answer may be a format that this release can not read: see `SUPPORTED`. Raises `ContentUnsupported`
    when nothing tells it. `head` is the document's beginning, at most `HEAD_SIZE` bytes.
    """
    if head.startswith(b"%PDF-"):
        return DocumentType.PDF
    suffix = PurePosixPath(filename.lower()).suffix
    declared = (content_type or "").partition(";")[0].strip().lower()
    known = _SUFFIXES.get(suffix) or _CONTENT_TYPES.get(declared)
    if known is not None:
        return known
    if suffix or b"\0" in head:
        raise _unsupported()
    return DocumentType.HTML if _looks_like_html(head) else DocumentType.TXT


def parse(path: Path, document_type: DocumentType) -> ParsedDocument:
    """Read and parse the document at `path`; every text of the result can be stored.

    Raises the class of `ContentError` that says what is wrong: unsupported, empty, not UTF-8.
    """
    parser = _PARSERS.get(document_type)
    if parser is None:
        raise _unsupported(document_type)
    document = _cleaned(parser(path.read_bytes()))
    if not any(segment.text.strip() for segment in document.segments):
        raise ContentEmpty("the document has no text")
    return document


def _cleaned(document: ParsedDocument) -> ParsedDocument:
    title = None if document.title is None else clean(document.title).strip() or None
    return ParsedDocument(title, tuple(_cleaned_segment(segment) for segment in document.segments))


def _cleaned_segment(segment: Segment) -> Segment:
    return Segment(
        text=clean(segment.text),
        page_no=segment.page_no,
        section_title=None if segment.section_title is None else clean(segment.section_title) or None,
        metadata=clean_json(segment.metadata),
    )


def _looks_like_html(head: bytes) -> bool:
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith((b"<!doctype html", b"<html"))


def _unsupported(document_type: DocumentType | None = None) -> ContentUnsupported:
    kind = "this kind of document" if document_type is None else document_type.value
    return ContentUnsupported(f"{kind} can not be read: supported are {', '.join(SUPPORTED)}")
