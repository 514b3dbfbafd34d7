"""The chunker's promises: everything is covered, nothing twice but the overlap, no segment is crossed."""

import hashlib
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docgrid_core.errors import ContentEmpty, ContentOverLimit
from docgrid_core.records import NewChunk
from docgrid_core.settings import ChunkingSettings
from docgrid_pipeline.chunking import chunk, windows
from docgrid_pipeline.parsing import ParsedDocument, Segment


def settings(size: int = 10, overlap: int = 3, max_chunks: int = 20_000) -> ChunkingSettings:
    return ChunkingSettings(size=size, overlap=overlap, max_chunks=max_chunks)


def document(*texts: str) -> ParsedDocument:
    return ParsedDocument(title=None, segments=tuple(Segment(text) for text in texts))


def spans(chunks: list[NewChunk]) -> list[tuple[int, int]]:
    return [(piece.char_start, piece.char_end) for piece in chunks]


cuts = st.integers(1, 12).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))
documents = st.lists(st.text(max_size=40), min_size=1, max_size=5).filter(
    lambda texts: any(map(str.strip, texts))
)


@given(length=st.integers(0, 500), cut=cuts)
def test_windows_cover_every_position_and_none_is_only_overlap(length: int, cut: tuple[int, int]) -> None:
    size, overlap = cut
    ranges = list(windows(length, size=size, overlap=overlap))

    covered = {position for start, end in ranges for position in range(start, end)}
    assert covered == set(range(length))
    for (start, end), (next_start, next_end) in pairwise(ranges):
        assert next_start == start + size - overlap
        assert end == start + size
        assert next_end > end


@given(texts=documents, cut=cuts)
def test_offsets_cut_the_chunk_texts_out_of_the_joined_document(
    texts: list[str], cut: tuple[int, int]
) -> None:
    whole = "\n".join(texts)
    for piece in chunk(document(*texts), settings(*cut)):
        assert whole[piece.char_start : piece.char_end] == piece.text
        assert 0 < len(piece.text) <= cut[0]


@given(texts=documents, cut=cuts)
def test_only_white_space_and_joints_are_outside_of_all_chunks(
    texts: list[str], cut: tuple[int, int]
) -> None:
    whole = "\n".join(texts)
    covered = {
        position
        for piece in chunk(document(*texts), settings(*cut))
        for position in range(piece.char_start, piece.char_end)
    }
    assert all(whole[position].isspace() for position in set(range(len(whole))) - covered)


@given(texts=documents, cut=cuts)
def test_no_chunk_crosses_a_segment(texts: list[str], cut: tuple[int, int]) -> None:
    bounds, start = [], 0
    for text in texts:
        bounds.append((start, start + len(text)))
        start += len(text) + 1
    for piece in chunk(document(*texts), settings(*cut)):
        assert any(low <= piece.char_start and piece.char_end <= high for low, high in bounds)


@given(texts=documents, cut=cuts)
def test_indexes_run_from_zero_and_hashes_are_of_the_text(texts: list[str], cut: tuple[int, int]) -> None:
    chunks = chunk(document(*texts), settings(*cut))
    assert [piece.index for piece in chunks] == list(range(len(chunks)))
    assert all(piece.content_hash == hashlib.sha256(piece.text.encode()).hexdigest() for piece in chunks)


def test_chunking_the_same_document_twice_gives_the_same_chunks() -> None:
    assert chunk(document("one two three four"), settings()) == chunk(
        document("one two three four"), settings()
    )


def test_each_chunk_starts_a_step_after_the_last_and_the_one_that_reaches_the_end_is_the_last() -> None:
    assert spans(chunk(document("x" * 24), settings())) == [(0, 10), (7, 17), (14, 24)]


def test_a_text_of_exactly_the_size_is_one_chunk() -> None:
    assert spans(chunk(document("x" * 10), settings())) == [(0, 10)]


def test_offsets_count_code_points_not_bytes_or_utf16_units() -> None:
    pieces = chunk(document("가나다라마😀바사아자차카"), settings())
    assert [piece.text for piece in pieces] == ["가나다라마😀바사아자", "사아자차카"]


def test_offsets_go_on_after_one_line_feed_between_segments() -> None:
    assert spans(chunk(document("abc", "", "de"), settings())) == [(0, 3), (5, 7)]


def test_tokens_are_runs_between_white_space() -> None:
    (piece,) = chunk(document(" a  bb\n\tc "), settings())
    assert piece.token_count == 3


def test_page_section_and_metadata_come_from_the_segment() -> None:
    segment = Segment("text", page_no=4, section_title="Leases", metadata={"heading_path": ["Leases"]})
    (piece,) = chunk(ParsedDocument(None, (segment,)), settings())
    assert (piece.page_no, piece.section_title, piece.metadata) == (4, "Leases", {"heading_path": ["Leases"]})


def test_chunks_of_only_white_space_are_dropped_and_the_rest_is_indexed() -> None:
    """Case 19."""
    pieces = chunk(document("a" * 10 + " " * 30 + "b" * 5), settings(overlap=0))
    assert [(piece.index, piece.text) for piece in pieces] == [(0, "a" * 10), (1, "b" * 5)]


@pytest.mark.parametrize("texts", [(), ("",), (" \n\t", "\u3000\u00a0")])
def test_a_document_without_text_is_refused_as_empty(texts: tuple[str, ...]) -> None:
    with pytest.raises(ContentEmpty):
        chunk(document(*texts), settings())


def test_the_chunk_limit_is_the_last_number_that_is_accepted() -> None:
    text = "x" * 30
    assert len(chunk(document(text), settings(overlap=0, max_chunks=3))) == 3
    with pytest.raises(ContentOverLimit, match="more than 2 chunks"):
        chunk(document(text), settings(overlap=0, max_chunks=2))
