"""Formats are recognised, refused with a reason, and cleaned before anything is stored."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docgrid_core.errors import ContentEmpty, ContentNotUtf8, ContentUnsupported
from docgrid_core.jobs import DocumentType
from docgrid_core.text import clean, clean_json
from docgrid_pipeline.parsing import HEAD_SIZE, SUPPORTED, ParsedDocument, document_type_of, parse
from docgrid_pipeline.parsing.text import parse_text


def parsed(folder: Path, content: bytes, document_type: DocumentType = DocumentType.TXT) -> ParsedDocument:
    path = folder / "document"
    path.write_bytes(content)
    return parse(path, document_type)


@pytest.mark.parametrize(
    ("filename", "content_type", "head", "expected"),
    [
        ("notes.txt", None, b"", DocumentType.TXT),
        ("NOTES.TXT", "text/html", b"", DocumentType.TXT),
        ("readme.md", "text/plain", b"", DocumentType.MD),
        ("a.markdown", None, b"", DocumentType.MD),
        ("page.htm", "application/octet-stream", b"", DocumentType.HTML),
        ("archive.v2", "text/html; charset=utf-8", b"", DocumentType.HTML),
        ("report.pdf", None, b"", DocumentType.PDF),
        ("report.txt", "text/plain", b"%PDF-1.7\n", DocumentType.PDF),
        ("letter.docx", None, b"PK\x03\x04", DocumentType.DOCX),
        ("LICENSE", None, b"Apache License", DocumentType.TXT),
        ("index", None, b"\xef\xbb\xbf\n<!DOCTYPE html>", DocumentType.HTML),
        (".profile", None, b"text", DocumentType.TXT),
    ],
)
def test_the_format_is_told_by_the_first_bytes_then_the_name_then_the_declared_type(
    filename: str, content_type: str | None, head: bytes, expected: DocumentType
) -> None:
    assert document_type_of(filename, content_type, head[:HEAD_SIZE]) is expected


@pytest.mark.parametrize(
    ("filename", "content_type", "head"),
    [("photo.png", "image/png", b"\x89PNG"), ("data", None, b"a\0b"), ("table.csv", "text/csv", b"a,b")],
)
def test_an_unknown_kind_is_refused_and_the_message_names_the_supported_ones(
    filename: str, content_type: str | None, head: bytes
) -> None:
    with pytest.raises(ContentUnsupported, match="supported are TXT, MD, HTML") as caught:
        document_type_of(filename, content_type, head)
    assert filename not in str(caught.value)


@pytest.mark.parametrize("document_type", [DocumentType.PDF, DocumentType.DOCX])
def test_a_known_format_without_a_parser_is_refused(tmp_path: Path, document_type: DocumentType) -> None:
    assert document_type not in SUPPORTED
    with pytest.raises(ContentUnsupported, match=f"{document_type} can not be read"):
        parsed(tmp_path, b"%PDF-1.7", document_type)


@pytest.mark.parametrize("document_type", SUPPORTED)
@pytest.mark.parametrize(
    "content", [b"", b" \n\t\r\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf \n", b"\0\0", "\u3000".encode()]
)
def test_a_document_without_text_is_refused_as_empty(
    tmp_path: Path, document_type: DocumentType, content: bytes
) -> None:
    with pytest.raises(ContentEmpty):
        parsed(tmp_path, content, document_type)


@pytest.mark.parametrize("document_type", SUPPORTED)
def test_text_that_is_not_utf8_is_refused_with_the_offset_of_the_first_bad_byte(
    tmp_path: Path, document_type: DocumentType
) -> None:
    content = b"\xef\xbb\xbf" + "비밀".encode() + "날짜".encode("euc-kr")
    with pytest.raises(ContentNotUtf8, match="offset 9 ") as caught:
        parsed(tmp_path, content, document_type)
    assert "비밀" not in str(caught.value)
    assert caught.value.__context__ is None, "the codec's error carries the whole document"


def test_one_leading_byte_order_mark_is_removed_and_no_other() -> None:
    assert parse_text("\ufeff\ufeffa\ufeff".encode()).segments[0].text == "\ufeffa\ufeff"


@given(st.text(alphabet="ab \t\x0b\x0c\x85\u2028\r\n\ufeff"))
def test_of_plain_text_only_line_ends_and_the_mark_change(text: str) -> None:
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    assert parse_text(("\ufeff" + text).encode()).segments[0].text == expected


def test_nul_is_removed_from_text_title_section_and_metadata(tmp_path: Path) -> None:
    """Case 16."""
    document = parsed(tmp_path, b"# He\0ading\0\n\nclean\0 body\n", DocumentType.MD)
    (segment,) = document.segments
    assert document.title == "Heading"
    assert segment.section_title == "Heading"
    assert segment.metadata == {"heading_path": ["Heading"]}
    assert segment.text == "# Heading\n\nclean body\n"


def test_lone_surrogates_are_replaced_and_real_pairs_kept() -> None:
    """Case 17."""
    assert clean("a\ud83d\ude00b") == "a😀b"
    assert clean("\ude00a\ud83d") == "\ufffda\ufffd"
    assert clean("a\ud83db\ufeff😀") == "a\ufffdb\ufeff😀"


@given(st.text(alphabet=st.characters()))
def test_cleaned_text_can_always_be_stored_and_cleaning_again_changes_nothing(text: str) -> None:
    cleaned = clean(text)
    assert "\0" not in cleaned
    assert cleaned.encode("utf-8").decode("utf-8") == cleaned
    assert clean(cleaned) == cleaned


def test_metadata_is_cleaned_at_every_depth_keys_included() -> None:
    dirty = {"a\0": ["\ud800", {"b": "c\0"}], "n": 1, "none": None}
    assert clean_json(dirty) == {"a": ["\ufffd", {"b": "c"}], "n": 1, "none": None}
