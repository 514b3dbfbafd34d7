"""The S3 server that holds the documents' bytes.

The parse stage fetches from it, `docgrid ingest` puts into it and lists prefixes of it, `docgrid doctor`
checks it. What DocGrid uploads is content-addressed, so an upload can be repeated and never overwrites
another document; objects that others own (`s3://bucket/key`) are only read.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import urllib3
from minio import Minio
from minio.error import S3Error

from docgrid_core.errors import (
    ContentOverLimit,
    ContentUnreadable,
    SettingsError,
    StorageMisconfigured,
    StorageObjectChanged,
    StorageObjectMissing,
)
from docgrid_core.jobs import StorageProvider
from docgrid_core.records import ObjectRef
from docgrid_core.settings import StorageSettings
from docgrid_core.text import clean
from docgrid_pipeline.storage_errors import disk_errors, store_errors

_PART = 64 * 1024
_CONNECTIONS = 16
"""Connections that are kept open between calls; more are opened when more threads call."""


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a listing shows it; equal etag, size and version mean equal bytes."""

    bucket: str
    key: str
    size: int
    etag: str | None
    version: str | None


class ObjectStore:
    """One bucket for what DocGrid uploads, and read access to others; any number of threads may call it.

    Its border: it knows no document and retries nothing. Every call ends within the settings' time-outs with a
    result or with `StorageUnavailable` or `StorageMisconfigured`, besides what the methods name.
    """

    def __init__(self, settings: StorageSettings) -> None:
        self._bucket = settings.bucket
        # Without a pool of ours the SDK waits minutes for a server that is down: it retries five times.
        self._pool = urllib3.PoolManager(
            timeout=urllib3.Timeout(
                connect=settings.connect_timeout.total_seconds(), read=settings.read_timeout.total_seconds()
            ),
            retries=False,
            maxsize=_CONNECTIONS,
        )
        self._client = _build_client(settings, self._pool)

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.clear()

    def check(self) -> None:
        """Return if the bucket is there and may be used; else raise what is wrong."""
        with store_errors():
            found = self._client.bucket_exists(self._bucket)
        if not found:
            raise StorageMisconfigured("NoSuchBucket")

    def ensure_bucket(self) -> None:
        """Create the bucket unless it is there; two callers at once are no error."""
        with store_errors():
            if self._client.bucket_exists(self._bucket):
                return
            try:
                self._client.make_bucket(self._bucket)
            except S3Error as error:
                if error.code not in {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}:
                    raise

    def put(self, path: Path, *, content_type: str, max_size: int) -> ObjectRef:
        """Store the bytes of the file at `path` under their own hash; bytes that are there are not sent again.

        Raises `ContentUnreadable` when the file is gone, is no file or changes meanwhile, `ContentOverLimit`
        above `max_size` bytes, `DiskFull` without space for a temporary copy.
        """
        with disk_errors(reads_document=True), tempfile.TemporaryFile() as copy:
            # What is hashed is what is sent, whatever happens to the file: both come from the copy.
            sha256, size = _snapshot(path, copy, max_size=max_size)
            copy.seek(0)
            key = f"sha256/{sha256[:2]}/{sha256}"
            if not self._holds(key, size=size):
                with store_errors():
                    self._client.put_object(
                        self._bucket, key, copy, size, content_type=content_type, num_parallel_uploads=1
                    )
        return ObjectRef(StorageProvider.S3, self._bucket, key, sha256, size, content_type, clean(path.name))

    def fetch(self, ref: ObjectRef, *, to: Path, max_size: int) -> None:
        """Write the bytes of `ref` to the file `to`; on any error the file is removed.

        Raises `StorageObjectMissing`, `StorageObjectChanged` when the bytes are not the registered ones,
        `ContentOverLimit` above `max_size` bytes, `DiskFull`.
        """
        with disk_errors(reads_document=False), contextlib.ExitStack() as undo:
            undo.callback(to.unlink, missing_ok=True)
            with to.open("wb") as target, self._open(ref.bucket, ref.key, ref.object_version) as answer:
                sha256, _ = _receive(_parts(answer), target, max_size=max_size)
            if sha256 != ref.sha256:
                raise StorageObjectChanged("the object is not the one that was registered: ingest it again")
            undo.pop_all()

    def list_objects(self, bucket: str, prefix: str) -> Iterator[ListedObject]:
        """Yield the objects below `prefix` in the order of their keys; none is no error."""
        with store_errors():
            for item in self._client.list_objects(bucket, prefix=prefix, recursive=True):
                key = item.object_name or ""
                if key.endswith("/"):  # what some tools leave to show a folder
                    continue
                yield ListedObject(bucket, key, item.size or 0, _plain(item.etag), item.version_id)

    def describe(self, listed: ListedObject, *, max_size: int) -> ObjectRef:
        """Read an object that others own and return what it is, hash included; it stays where it is.

        Raises `StorageObjectMissing`, `StorageObjectChanged` when it is no longer the listed one,
        `ContentOverLimit` above `max_size` bytes.
        """
        with self._open(listed.bucket, listed.key, listed.version) as answer:
            sha256, size = _receive(_parts(answer), None, max_size=max_size)
        etag = _plain(answer.headers.get("etag"))
        if (size, etag) != (listed.size, listed.etag):
            raise StorageObjectChanged("the object changed since it was listed: ingest it again")
        return ObjectRef(
            provider=StorageProvider.S3,
            bucket=listed.bucket,
            key=listed.key,
            sha256=sha256,
            size=size,
            content_type=answer.headers.get("content-type", ""),
            filename=clean(PurePosixPath(listed.key).name),
            etag=etag,
            object_version=listed.version,
        )

    def _holds(self, key: str, *, size: int) -> bool:
        try:
            with store_errors():
                return self._client.stat_object(self._bucket, key).size == size
        except StorageObjectMissing:
            return False

    @contextlib.contextmanager
    def _open(self, bucket: str, key: str, version: str | None) -> Iterator[urllib3.BaseHTTPResponse]:
        with store_errors():
            answer = self._client.get_object(bucket, key, version_id=version)
        try:
            yield answer
        finally:
            answer.close()


def _build_client(settings: StorageSettings, pool: urllib3.PoolManager) -> Minio:
    try:
        return Minio(
            settings.endpoint,
            access_key=settings.access_key.get_secret_value(),
            secret_key=settings.secret_key.get_secret_value(),
            secure=settings.secure,
            region=settings.region,
            http_client=pool,
        )
    except ValueError:
        raise SettingsError(
            f"DOCGRID_STORAGE_ENDPOINT={settings.endpoint}: must be host:port, without scheme and path"
        ) from None


def _snapshot(path: Path, copy: IO[bytes], *, max_size: int) -> tuple[str, int]:
    """Copy a file; return its sha-256 and size. Refuse one that is written to at the same time."""
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for its writer
        raise ContentUnreadable("the file can not be read: it is not a regular file")
    with path.open("rb") as source:
        before = os.fstat(source.fileno())
        sha256, size = _receive(iter(lambda: source.read(_PART), b""), copy, max_size=max_size)
        after = os.fstat(source.fileno())
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, size):
        raise ContentUnreadable("the file changed while it was read: ingest it again")
    return sha256, size


def _receive(parts: Iterable[bytes], target: IO[bytes] | None, *, max_size: int) -> tuple[str, int]:
    """Take a stream to its end, at most `max_size` bytes; return its sha-256 and size."""
    digest, size = hashlib.sha256(), 0
    for part in parts:
        size += len(part)
        if size > max_size:
            raise ContentOverLimit(f"the document is larger than {max_size} bytes")
        digest.update(part)
        if target is not None:
            target.write(part)
    return digest.hexdigest(), size


def _parts(answer: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    with store_errors():
        yield from answer.stream(_PART)


def _plain(etag: str | None) -> str | None:
    return None if etag is None else etag.strip('"')
