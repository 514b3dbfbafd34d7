"""Cuts a parsed document into overlapping chunks of Unicode code points: pure functions.

The parse stage calls `chunk` with what `parsing.parse` returned.
"""

import hashlib
from collections.abc import Iterator

from docgrid_core.errors import ContentEmpty, ContentOverLimit
from docgrid_core.records import NewChunk
from docgrid_core.settings import ChunkingSettings
from docgrid_pipeline.parsing.document import ParsedDocument, Segment


def chunk(document: ParsedDocument, settings: ChunkingSettings) -> list[NewChunk]:
    """Cut every segment into chunks of at most `size` code points, each `size - overlap` after the last.

    Offsets are half-open and count in the segments joined by LF. A chunk of only white space is dropped.
    Raises `ContentEmpty` when no chunk remains, `ContentOverLimit` when more than `max_chunks` do.
    """
    chunks: list[NewChunk] = []
    offset = 0
    for segment in document.segments:
        for start, end in windows(len(segment.text), size=settings.size, overlap=settings.overlap):
            if segment.text[start:end].isspace():
                continue
            if len(chunks) == settings.max_chunks:
                raise ContentOverLimit(f"the document has more than {settings.max_chunks} chunks")
            chunks.append(_new_chunk(len(chunks), segment, start=start, end=end, offset=offset))
        offset += len(segment.text) + 1  # the LF between two segments
    if not chunks:
        raise ContentEmpty("the document has no text")
    return chunks


def windows(length: int, *, size: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Yield the half-open ranges that cover `length`; the first to reach the end is the last.

    So no range consists only of what the one before it has already shown.
    """
    for start in range(0, length, size - overlap):
        end = min(start + size, length)
        yield start, end
        if end == length:
            return


def _new_chunk(index: int, segment: Segment, *, start: int, end: int, offset: int) -> NewChunk:
    text = segment.text[start:end]
    return NewChunk(
        index=index,
        text=text,
        token_count=len(text.split()),
        char_start=offset + start,
        char_end=offset + end,
        page_no=segment.page_no,
        section_title=segment.section_title,
        content_hash=hashlib.sha256(text.encode("utf-8")).hexdigest(),
        metadata=segment.metadata,
    )
