"""The object store against a real S3 server, and against everything that can be wrong with one."""

import hashlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr

from docgrid_core.errors import (
    ContentOverLimit,
    ContentUnreadable,
    DiskFull,
    DocGridError,
    InternalError,
    SettingsError,
    StorageMisconfigured,
    StorageObjectChanged,
    StorageObjectMissing,
    StorageUnavailable,
)
from docgrid_core.jobs import StorageProvider
from docgrid_core.records import ObjectRef
from docgrid_core.settings import StorageSettings
from docgrid_pipeline import objects
from docgrid_pipeline.objects import ListedObject, ObjectStore
from support.objectstore import BrokenServer

LIMIT = 50_000_000
SECRET = "a-secret-that-must-not-leak"


@pytest.fixture
def settings(storage_settings: StorageSettings) -> StorageSettings:
    """Name a bucket of the test's own."""
    return storage_settings.model_copy(update={"bucket": f"test-{uuid4().hex}"})


@pytest.fixture
def store(settings: StorageSettings) -> Iterator[ObjectStore]:
    store = ObjectStore(settings)
    store.ensure_bucket()
    yield store
    store.close()


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"some text\n" * 1000)
    return path


def put(store: ObjectStore, path: Path, max_size: int = LIMIT) -> ObjectRef:
    return store.put(path, content_type="text/plain", max_size=max_size)


def fetched(store: ObjectStore, ref: ObjectRef, folder: Path, max_size: int = LIMIT) -> bytes:
    target = folder / "fetched"
    try:
        store.fetch(ref, to=target, max_size=max_size)
    except DocGridError:
        assert not target.exists(), "a refused object leaves no file"
        raise
    return target.read_bytes()


# --- the good way -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 100_000, 6_000_000])
def test_what_was_put_is_fetched_byte_by_byte(store: ObjectStore, tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    path = tmp_path / "any.bin"
    path.write_bytes(content)
    ref = put(store, path)
    assert (ref.size, ref.sha256) == (size, hashlib.sha256(content).hexdigest())
    assert fetched(store, ref, tmp_path) == content


def test_the_key_is_the_hash_and_the_rest_describes_the_file(
    store: ObjectStore, settings: StorageSettings, document: Path
) -> None:
    sha256 = hashlib.sha256(document.read_bytes()).hexdigest()
    assert put(store, document) == ObjectRef(
        provider=StorageProvider.S3,
        bucket=settings.bucket,
        key=f"sha256/{sha256[:2]}/{sha256}",
        sha256=sha256,
        size=10_000,
        content_type="text/plain",
        filename="notes.txt",
    )


def test_a_file_name_that_no_database_can_hold_is_cleaned(store: ObjectStore, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xffame.txt"))
    path.write_bytes(b"text")
    assert put(store, path).filename == "n\ufffdame.txt"


def test_the_same_bytes_are_sent_once(store: ObjectStore, settings: StorageSettings, document: Path) -> None:
    ref = put(store, document)
    store._client.put_object(settings.bucket, ref.key, BytesIO(b"x" * ref.size), ref.size)
    put(store, document)
    with store._client.get_object(settings.bucket, ref.key) as kept:
        assert kept.read() == b"x" * ref.size, "it was sent again"


def test_an_upload_that_was_cut_short_is_made_good(
    store: ObjectStore, settings: StorageSettings, document: Path, tmp_path: Path
) -> None:
    ref = put(store, document)
    store._client.put_object(settings.bucket, ref.key, BytesIO(b"half"), 4)
    assert put(store, document) == ref
    assert fetched(store, ref, tmp_path) == document.read_bytes()


def test_many_may_put_the_same_document_at_once(store: ObjectStore, document: Path, tmp_path: Path) -> None:
    refs: list[ObjectRef] = []
    threads = [threading.Thread(target=lambda: refs.append(put(store, document))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refs) == 8
    assert len(set(refs)) == 1
    assert fetched(store, refs[0], tmp_path) == document.read_bytes()


def test_making_the_bucket_again_or_at_the_same_time_is_no_error(settings: StorageSettings) -> None:
    failures: list[Exception] = []

    def ensure() -> None:
        store = ObjectStore(settings)
        try:
            store.ensure_bucket()
            store.check()
        except DocGridError as error:
            failures.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=ensure) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ensure()
    assert failures == []


# --- what others own --------------------------------------------------------------------------------


def upload(store: ObjectStore, bucket: str, key: str, content: bytes) -> None:
    store._client.put_object(bucket, key, BytesIO(content), len(content), content_type="text/markdown")


def test_a_prefix_lists_its_objects_in_order_without_folder_marks(
    store: ObjectStore, settings: StorageSettings
) -> None:
    keys = ["docs/a.md", "docs/sub/b.md", "docs/글 %.txt"]
    for key in [*keys, "docs/sub/", "other/c.md", "docs2/d.md"]:
        upload(store, settings.bucket, key, key.encode() if not key.endswith("/") else b"")
    listed = list(store.list_objects(settings.bucket, "docs/"))
    assert [item.key for item in listed] == keys
    assert [item.size for item in listed] == [len(key.encode()) for key in keys]
    assert all(item.etag and '"' not in item.etag for item in listed)


def test_a_prefix_that_does_not_exist_lists_nothing(store: ObjectStore, settings: StorageSettings) -> None:
    assert list(store.list_objects(settings.bucket, "nothing/here")) == []


def listed_one(store: ObjectStore, bucket: str) -> ListedObject:
    (listed,) = store.list_objects(bucket, "")
    return listed


def test_an_object_that_others_own_is_described_where_it_is(
    store: ObjectStore, settings: StorageSettings, tmp_path: Path
) -> None:
    upload(store, settings.bucket, "docs/a b.md", b"# text")
    listed = listed_one(store, settings.bucket)
    ref = store.describe(listed, max_size=LIMIT)
    assert (ref.key, ref.filename, ref.content_type) == ("docs/a b.md", "a b.md", "text/markdown")
    assert (ref.sha256, ref.size) == (hashlib.sha256(b"# text").hexdigest(), 6)
    assert (ref.etag, ref.object_version) == (listed.etag, listed.version)
    assert fetched(store, ref, tmp_path) == b"# text"


def test_an_object_that_changed_since_it_was_listed_is_refused(
    store: ObjectStore, settings: StorageSettings
) -> None:
    upload(store, settings.bucket, "a.md", b"one")
    listed = listed_one(store, settings.bucket)
    upload(store, settings.bucket, "a.md", b"two")
    with pytest.raises(StorageObjectChanged, match="ingest it again"):
        store.describe(listed, max_size=LIMIT)


# --- documents that can not be had ------------------------------------------------------------------


def test_an_object_that_is_gone_is_missing(store: ObjectStore, document: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageObjectMissing):
        fetched(store, replace(put(store, document), key="sha256/00/gone"), tmp_path)


def test_an_object_that_was_overwritten_is_changed(
    store: ObjectStore, settings: StorageSettings, document: Path, tmp_path: Path
) -> None:
    ref = put(store, document)
    upload(store, settings.bucket, ref.key, b"other bytes")
    with pytest.raises(StorageObjectChanged, match="ingest it again"):
        fetched(store, ref, tmp_path)


def test_the_size_limit_is_the_last_size_that_is_accepted(
    store: ObjectStore, settings: StorageSettings, document: Path, tmp_path: Path
) -> None:
    ref = put(store, document, max_size=10_000)
    assert len(fetched(store, ref, tmp_path, max_size=10_000)) == 10_000
    with pytest.raises(ContentOverLimit, match="larger than 9999 bytes"):
        fetched(store, ref, tmp_path, max_size=9_999)
    with pytest.raises(ContentOverLimit):
        put(store, document, max_size=9_999)
    with pytest.raises(ContentOverLimit):
        store.describe(listed_one(store, settings.bucket), max_size=9_999)


def make_nothing(path: Path) -> None:
    """Leave the path without a file."""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_nothing, "No such file or directory"),
        (Path.mkdir, "not a regular file"),
        (os.mkfifo, "not a regular file"),
        (lambda path: path.symlink_to(path), "Too many levels"),
    ],
)
def test_what_is_no_file_can_not_be_put(
    store: ObjectStore, tmp_path: Path, make: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "named.txt"
    make(path)
    with pytest.raises(ContentUnreadable, match=reason) as caught:
        put(store, path)
    assert "named.txt" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [lambda path: path.write_bytes(b"other"), lambda path: os.utime(path, (1, 1))]
)
def test_a_file_that_changes_while_it_is_read_is_refused(
    store: ObjectStore,
    settings: StorageSettings,
    document: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], object],
) -> None:
    receive = objects._receive

    def receive_and_change(parts: Iterator[bytes], target: BytesIO, *, max_size: int) -> tuple[str, int]:
        received = receive(parts, target, max_size=max_size)
        change(document)
        return received

    monkeypatch.setattr(objects, "_receive", receive_and_change)
    with pytest.raises(ContentUnreadable, match="changed while it was read"):
        put(store, document)
    assert list(store.list_objects(settings.bucket, "")) == []


def test_a_full_disk_is_told_and_nothing_is_stored(
    store: ObjectStore,
    settings: StorageSettings,
    document: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ref = put(store, document)
    full = tmp_path / "fetched"
    full.symlink_to("/dev/full")  # every write to it fails for lack of space
    with pytest.raises(DiskFull):
        store.fetch(ref, to=full, max_size=LIMIT)
    assert not full.is_symlink()

    document.write_bytes(b"new" * 10_000)
    with Path("/dev/full").open("r+b", buffering=0) as no_space:
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda: no_space)
        with pytest.raises(DiskFull):
            put(store, document)
    assert [item.key for item in store.list_objects(settings.bucket, "")] == [ref.key]


def test_a_place_that_can_not_be_written_is_our_own_fault(
    store: ObjectStore, document: Path, tmp_path: Path
) -> None:
    ref = put(store, document)
    with pytest.raises(InternalError):
        store.fetch(ref, to=tmp_path / "no" / "folder", max_size=LIMIT)


# --- servers that can not be used -------------------------------------------------------------------

Use = Callable[[ObjectStore, Path], object]

REF = ObjectRef(StorageProvider.S3, "some-bucket", "key", "0" * 64, 10, "text/plain", "a.txt")
USES: list[Use] = [
    lambda store, _: store.check(),
    lambda store, _: store.ensure_bucket(),
    lambda store, folder: put(store, folder / "notes.txt"),
    lambda store, folder: fetched(store, REF, folder),
    lambda store, _: list(store.list_objects("some-bucket", "")),
    lambda store, _: store.describe(ListedObject("some-bucket", "key", 10, "e", None), max_size=LIMIT),
]
NAMES = ["check", "ensure_bucket", "put", "fetch", "list", "describe"]


def settings_for(endpoint: str) -> StorageSettings:
    return StorageSettings(
        endpoint=endpoint,
        secure=False,
        access_key=SecretStr("access"),
        secret_key=SecretStr(SECRET),
        bucket="some-bucket",
        read_timeout=timedelta(milliseconds=300),
    )


def error_of(use: Use, settings: StorageSettings, folder: Path) -> DocGridError:
    store = ObjectStore(settings)
    try:
        with pytest.raises(DocGridError) as caught:
            use(store, folder)
    finally:
        store.close()
    shown = f"{caught.value} {caught.value!r} {vars(caught.value)}"
    assert SECRET not in shown
    assert settings.endpoint not in shown
    assert "foreign" not in shown
    return caught.value


def xml(status: str, code: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>foreign text</Message></Error>"
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


@pytest.mark.parametrize("use", USES, ids=NAMES)
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(None, id="hangs"),
        pytest.param(b"", id="hangs up"),
        pytest.param(b"foreign text\r\n\r\n", id="speaks no HTTP"),
        pytest.param(
            b"HTTP/1.1 502 Bad\r\nContent-Type: text/html\r\nContent-Length: 7\r\n\r\nforeign", id="proxy"
        ),
        pytest.param(xml("500 Error", "InternalError"), id="500"),
        pytest.param(xml("503 Slow", "SlowDown"), id="503"),
        pytest.param(xml("429 Slow", "TooManyRequests"), id="429"),
    ],
)
def test_a_store_that_does_not_work_is_unavailable_after_one_try_in_bounded_time(
    use: Use, answer: bytes | None, tmp_path: Path, document: Path
) -> None:
    started = time.monotonic()
    with BrokenServer(answer) as server:
        assert type(error_of(use, settings_for(server.endpoint), tmp_path)) is StorageUnavailable
        assert server.connections == 1
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("use", USES, ids=NAMES)
def test_nobody_listening_is_unavailable_at_once(use: Use, tmp_path: Path, document: Path) -> None:
    started = time.monotonic()
    assert type(error_of(use, settings_for("127.0.0.1:1"), tmp_path)) is StorageUnavailable
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("body", [b"0123", b""])
def test_a_transfer_that_is_cut_is_unavailable_and_leaves_no_file(body: bytes, tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: e\r\n\r\n"
    for use in USES[3], USES[5]:
        with BrokenServer(head + body) as server:
            assert type(error_of(use, settings_for(server.endpoint), tmp_path)) is StorageUnavailable


@pytest.mark.parametrize("use", USES, ids=NAMES)
@pytest.mark.parametrize("key", ["access_key", "secret_key"])
def test_wrong_credentials_are_a_wrong_configuration(
    use: Use, key: str, storage_settings: StorageSettings, tmp_path: Path, document: Path
) -> None:
    wrong = storage_settings.model_copy(update={key: SecretStr(SECRET), "bucket": "some-bucket"})
    assert type(error_of(use, wrong, tmp_path)) is StorageMisconfigured


@pytest.mark.parametrize("use", [USES[0], *USES[2:]], ids=[NAMES[0], *NAMES[2:]])
def test_a_bucket_that_is_not_there_is_a_wrong_configuration(
    use: Use, storage_settings: StorageSettings, tmp_path: Path, document: Path
) -> None:
    missing = storage_settings.model_copy(update={"bucket": "some-bucket"})
    assert type(error_of(use, missing, tmp_path)) is StorageMisconfigured


@pytest.mark.parametrize("bucket", ["No_Bucket", "a..b"])
def test_a_name_that_no_bucket_can_have_is_a_wrong_configuration(store: ObjectStore, bucket: str) -> None:
    with pytest.raises(StorageMisconfigured):
        list(store.list_objects(bucket, ""))


@pytest.mark.parametrize("endpoint", ["host:port", "host:99999"])
def test_an_endpoint_that_is_none_is_a_wrong_setting(endpoint: str) -> None:
    with pytest.raises(SettingsError, match="DOCGRID_STORAGE_ENDPOINT"):
        ObjectStore(settings_for(endpoint))
