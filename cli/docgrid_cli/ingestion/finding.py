"""Finding the documents that a path or an S3 address stands for.

Yields a `Found` for each document, and a `Passed` for everything that is none: skipped because DocGrid does not
read it, or failed because it should have been readable. Nothing here stops at a single file.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from docgrid_core.errors import BadParameter, ContentError, ContentUnreadable, ContentUnsupported
from docgrid_core.jobs import DocumentType
from docgrid_pipeline.objects import ListedObject, ObjectStore
from docgrid_pipeline.parsing import HEAD_SIZE, SUPPORTED, document_type_of

S3_SCHEME = "s3://"


@dataclass(frozen=True, slots=True)
class Found:
    """A document to register. Its bytes are the file's at `place`, or the object's that stays where it is."""

    source_uri: str
    title: str
    document_type: DocumentType
    place: Path | ListedObject


@dataclass(frozen=True, slots=True)
class Passed:
    """Something that is not registered; `skipped` is no failure."""

    source_uri: str
    error: ContentError
    skipped: bool


def find(place: str, objects: ObjectStore) -> Iterator[Found | Passed]:
    """Yield what a file, a folder or an `s3://bucket/prefix` holds, in the order of the names.

    Entries of a folder whose names begin with a dot are left out, and links to folders are not followed.
    Raises `BadParameter` when nothing is there, and what the object store refuses.
    """
    if place.startswith(S3_SCHEME):
        yield from _find_objects(place, objects)
        return
    path = Path(os.path.abspath(Path(place).expanduser()))  # noqa: PTH100 - resolve() would follow links
    if path.is_dir():
        yield from _find_files(path)
    elif os.path.lexists(path):
        yield _look_at(path, asked_for=True)
    else:
        raise BadParameter("there is no such file or folder")


def uri_of(path: Path) -> str:
    """Return the identity of a local file's document; a name that is no text is percent-encoded like any other."""
    return path.as_uri()


def _find_files(folder: Path) -> Iterator[Found | Passed]:
    unreadable: list[OSError] = []
    for directory, folders, files in os.walk(folder, onerror=unreadable.append):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if not name.startswith("."):
                yield _look_at(Path(directory, name), asked_for=False)
    for error in unreadable:
        reason = f"the folder can not be read: {error.strerror}"
        yield Passed(uri_of(Path(error.filename or folder)), ContentUnreadable(reason), skipped=False)


def _look_at(path: Path, *, asked_for: bool) -> Found | Passed:
    """Tell what a file is; one of an unknown kind is skipped, unless a person asked for it by name."""
    uri = uri_of(path)
    try:
        kind = document_type_of(path.name, None, _read_head(path))
    except OSError as error:
        reason = f"the file can not be read: {os.strerror(error.errno or 0)}"
        return Passed(uri, ContentUnreadable(reason), skipped=False)
    except ContentError as error:
        return Passed(uri, error, skipped=not asked_for and isinstance(error, ContentUnsupported))
    if kind not in SUPPORTED:
        return Passed(uri, _unsupported(kind), skipped=not asked_for)
    return Found(uri, path.name, kind, path)


def _read_head(path: Path) -> bytes:
    if not path.is_file():
        # A pipe would wait for its writer; a link that leads nowhere has the error that stat gives.
        path.stat()
        raise ContentUnreadable("it is not a regular file")
    with path.open("rb") as file:
        return file.read(HEAD_SIZE)


def _find_objects(address: str, objects: ObjectStore) -> Iterator[Found | Passed]:
    bucket, _, prefix = address.removeprefix(S3_SCHEME).partition("/")
    if not bucket:
        raise BadParameter("it names no bucket: write s3://bucket/prefix")
    empty = True
    for listed in objects.list_objects(bucket, prefix):
        empty = False
        yield _look_at_object(listed, asked_for=listed.key == prefix)
    if empty:
        raise BadParameter("there is no object with this prefix")


def _look_at_object(listed: ListedObject, *, asked_for: bool) -> Found | Passed:
    uri = f"{S3_SCHEME}{listed.bucket}/{listed.key}"
    name = PurePosixPath(listed.key).name
    try:
        # Its bytes are read when it is registered: here only the name tells, and no name at all means text.
        kind = document_type_of(name, None, b"")
        if kind not in SUPPORTED:
            raise _unsupported(kind)
    except ContentError as error:
        return Passed(uri, error, skipped=not asked_for)
    return Found(uri, name, kind, listed)


def _unsupported(kind: DocumentType) -> ContentUnsupported:
    return ContentUnsupported(f"{kind} can not be read: supported are {', '.join(SUPPORTED)}")
