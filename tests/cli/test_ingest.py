"""Promises of `docgrid ingest`."""

import itertools
import os
import signal
from io import BytesIO
from pathlib import Path

import pytest
from minio import Minio

from docgrid_cli.ingestion import registering
from docgrid_cli.ingestion.finding import Found
from docgrid_cli.local.ports import free_ports
from docgrid_core.errors import StorageUnavailable
from docgrid_core.jobs import JobStatus
from docgrid_core.records import ObjectRef
from docgrid_pipeline.objects import ObjectStore
from support import tables
from support.cli import Cli
from support.site import Site


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Make a folder with three documents, one of them in a folder of its own."""
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "glacier.txt").write_text("The glacier moves slowly down the mountain.")
    (folder / "kiln.md").write_text("# Kilns\n\nClay is fired in a kiln.")
    (folder / "deep" / "harbour.html").write_text("<h1>Harbour</h1><p>The ship leaves the harbour.</p>")
    return folder


@pytest.fixture
def s3(site: Site) -> Minio:
    """Return a client that owns objects in the site's bucket."""
    storage = site.storage
    return Minio(
        storage.endpoint,
        access_key=storage.access_key.get_secret_value(),
        secret_key=storage.secret_key.get_secret_value(),
        secure=False,
        region=storage.region,
    )


def put(s3: Minio, bucket: str, key: str, text: str) -> None:
    s3.put_object(bucket, key, BytesIO(text.encode()), len(text.encode()))


def test_a_folder_is_registered_and_told_by_outcome(site_cli: Cli, site: Site, notes: Path) -> None:
    answer = site_cli("ingest", str(notes))
    assert (answer.code, answer.err) == (0, "")
    assert answer.rows == [["created", "3"]]
    listed = {row["sourceUri"]: row for row in site_cli("documents", "list", "-o", "json").json}
    assert listed.keys() == {path.as_uri() for path in notes.rglob("*.*")}
    assert listed[(notes / "kiln.md").as_uri()]["title"] == "kiln.md"


def test_what_was_indexed_is_found_and_unchanged_files_are_left_alone(
    site_cli: Cli, site: Site, notes: Path
) -> None:
    site.start()
    answer = site_cli("ingest", "--wait", str(notes))
    assert (answer.code, answer.err) == (0, "3 INDEXED\n")
    hits = site_cli("search", "pottery and clay", "-o", "json").json
    assert hits[0]["title"] == "kiln.md"
    assert hits[0]["sectionTitle"] == "Kilns"
    assert "Clay is fired" in site_cli("search", "pottery and clay", "-k", "1").out
    again = site_cli("ingest", "--wait", str(notes))
    assert (again.code, again.rows) == (0, [["unchanged", "3"]])


def test_a_changed_file_is_a_new_version_and_a_forced_one_too(site_cli: Cli, site: Site, notes: Path) -> None:
    site.start()
    site_cli("ingest", "--wait", str(notes / "kiln.md"))
    (notes / "kiln.md").write_text("# Kilns\n\nGlass is blown.")
    assert site_cli("ingest", "--wait", str(notes / "kiln.md")).rows == [["created", "1"]]
    assert site_cli("ingest", "--wait", "--force", str(notes / "kiln.md")).rows == [["created", "1"]]
    (document,) = site_cli("documents", "list", "-o", "json").json
    assert document["currentVersionNo"] == 3
    assert {hit["versionNo"] for hit in site_cli("search", "clay", "-o", "json").json} == {3}


def test_a_file_that_changed_while_it_is_indexed_has_to_wait_or_to_supersede(
    site_cli: Cli, site: Site, notes: Path
) -> None:
    path = notes / "kiln.md"
    first = site_cli("ingest", str(path), "-o", "json").json[0]
    assert site_cli("ingest", str(path)).rows == [["in_progress", "1"]]
    path.write_text("changed")
    refused = site_cli("ingest", str(path))
    assert (refused.code, refused.rows) == (1, [["failed", "1"]])
    assert refused.err.startswith(f"{path}: DOCUMENT-VERSION-002: version 1 of the document is being indexed")
    assert site_cli("ingest", "--supersede", str(path)).rows == [["created", "1"]]
    assert site.status(first["jobId"]) == JobStatus.CANCELED


def test_the_priority_reaches_the_queue(site_cli: Cli, site: Site, notes: Path) -> None:
    (result,) = site_cli("ingest", "-p", "7", str(notes / "kiln.md"), "-o", "json").json
    assert tables.job(site.db, result["jobId"]).priority == 7


def test_names_are_what_other_commands_take(site_cli: Cli, notes: Path) -> None:
    names = site_cli("ingest", str(notes), "-o", "name").out.split()
    assert len(names) == 3
    answer = site_cli("documents", "delete", *names)
    assert (answer.code, answer.out.count("deleted")) == (0, 3)
    assert site_cli("documents", "list", "-o", "json").json == []


def test_one_bad_document_fails_alone_and_the_command_with_it(site_cli: Cli, site: Site, notes: Path) -> None:
    (notes / "broken.txt").write_bytes(b"caf\xe9")
    site.start()
    answer = site_cli("ingest", "--wait", str(notes))
    assert answer.code == 1
    told, summary = answer.err.splitlines()
    assert told.startswith(f"{notes / 'broken.txt'}: DOCUMENT-PARSING-003: the text is not UTF-8")
    assert summary == "1 FAILED, 3 INDEXED"
    again = site_cli("ingest", str(notes))
    assert (again.code, again.rows) == (1, [["unchanged", "3"], ["failed", "1"]])
    assert "DOCUMENT-PARSING-003" in again.err


def test_files_of_other_kinds_are_skipped_and_hidden_ones_not_looked_at(site_cli: Cli, notes: Path) -> None:
    (notes / "picture.png").write_bytes(b"\x89PNG")
    (notes / "paper.pdf").write_bytes(b"%PDF-1.7")
    (notes / ".hidden.txt").write_text("hidden")
    (notes / ".git").mkdir()
    (notes / ".git" / "config.txt").write_text("hidden")
    answer = site_cli("ingest", str(notes))
    assert (answer.code, answer.rows) == (0, [["created", "3"], ["skipped", "2"]])
    assert f"skipped {notes / 'paper.pdf'}: PDF can not be read: supported are TXT, MD, HTML" in answer.err
    for number in range(20):
        (notes / f"{number}.png").touch()
    assert site_cli("ingest", str(notes)).err == "skipped 22 files: 1 .pdf, 21 .png\n"


def test_what_can_not_be_read_is_told_while_the_others_go_on(
    site_cli: Cli, notes: Path, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere.txt").write_text("elsewhere")
    (notes / "dangling.md").symlink_to("nowhere.md")
    (notes / "link.md").symlink_to(tmp_path / "elsewhere.txt")
    (notes / "loop").symlink_to(notes)
    os.mkfifo(notes / "pipe.txt")
    answer = site_cli("ingest", str(notes))
    assert (answer.code, answer.rows) == (1, [["created", "4"], ["failed", "2"]])
    assert answer.err.splitlines() == [
        f"{notes / 'dangling.md'}: DOCUMENT-PARSING-007: the file can not be read: No such file or directory",
        f"{notes / 'pipe.txt'}: DOCUMENT-PARSING-007: it is not a regular file",
    ]


def test_a_file_that_vanishes_after_it_was_found_fails_alone(
    site_cli: Cli, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_all = registering.Registrar.register_all

    def vanish_first(self: registering.Registrar, found: list[Found]) -> object:
        (notes / "kiln.md").unlink()
        return register_all(self, found)

    monkeypatch.setattr(registering.Registrar, "register_all", vanish_first)
    answer = site_cli("ingest", str(notes))
    assert (answer.code, answer.rows) == (1, [["created", "2"], ["failed", "1"]])
    assert answer.err.startswith(f"{notes / 'kiln.md'}: DOCUMENT-PARSING-007: the file can not be read")


def test_a_document_over_the_limit_fails_alone(site_cli: Cli, notes: Path) -> None:
    site_cli.environment["DOCGRID_PARSING_MAX_FILE_SIZE"] = "50"
    answer = site_cli("ingest", str(notes))
    assert (answer.code, answer.rows) == (1, [["created", "2"], ["failed", "1"]])
    assert "DOCUMENT-PARSING-008: the document is larger than 50 bytes" in answer.err


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("{notes}/nowhere", "there is no such file or folder"),
        ("{notes}/empty", "there is no document in it"),
        ("{notes}/pictures", "there is no document in it, 1 skipped"),
        ("s3://{bucket}/nowhere/", "there is no object with this prefix"),
        ("s3://no-such-bucket-here/", "the object store refuses the request: check bucket and credentials"),
        ("s3://", "it names no bucket: write s3://bucket/prefix"),
    ],
)
def test_a_place_without_documents_is_told_and_the_other_places_go_on(
    site_cli: Cli, site: Site, notes: Path, place: str, told: str
) -> None:
    (notes / "empty").mkdir()
    (notes / "pictures").mkdir()
    (notes / "pictures" / "a.png").touch()
    place = place.format(notes=notes, bucket=site.storage.bucket)
    answer = site_cli("ingest", place, str(notes / "kiln.md"))
    assert answer.code == 1
    assert answer.err.splitlines()[0] == f"{place}: {told}"
    assert ["created", "1"] in answer.rows


def test_a_file_of_another_kind_that_is_asked_for_by_name_fails(site_cli: Cli, notes: Path) -> None:
    (notes / "paper.pdf").write_bytes(b"%PDF-1.7")
    answer = site_cli("ingest", str(notes / "paper.pdf"))
    assert answer.code == 1
    assert "DOCUMENT-PARSING-001: PDF can not be read" in answer.err


def test_a_name_that_is_no_text_is_registered_like_any_other(site_cli: Cli, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path / "notes-") + b"\xff.txt"
    Path(os.fsdecode(path)).write_text("something")
    answer = site_cli("ingest", os.fsdecode(path))
    assert (answer.code, answer.rows) == (0, [["created", "1"]])
    assert site_cli("documents", "list").code == 0


def test_an_s3_prefix_is_registered_where_it_lies(site_cli: Cli, site: Site, s3: Minio) -> None:
    bucket = site.storage.bucket
    put(s3, bucket, "papers/glacier.txt", "The glacier moves slowly.")
    put(s3, bucket, "papers/old/kiln.md", "# Kiln\n\nClay is fired.")
    put(s3, bucket, "papers/picture.png", "no picture")
    put(s3, bucket, "other/secret.txt", "not asked for")
    site.start()
    answer = site_cli("ingest", "--wait", f"s3://{bucket}/papers/")
    assert (answer.code, answer.rows) == (0, [["created", "2"], ["skipped", "1"]])
    listed = site_cli("documents", "list", "-o", "json").json
    assert [row["sourceUri"] for row in listed] == [
        f"s3://{bucket}/papers/glacier.txt",
        f"s3://{bucket}/papers/old/kiln.md",
    ]
    put(s3, bucket, "papers/glacier.txt", "The glacier has melted.")
    changed = site_cli("ingest", "--wait", f"s3://{bucket}/papers/")
    assert changed.rows == [["created", "1"], ["unchanged", "1"], ["skipped", "1"]]


def test_an_s3_object_that_is_still_the_same_is_not_read_again(
    site_cli: Cli, site: Site, s3: Minio, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = site.storage.bucket
    put(s3, bucket, "papers/glacier.txt", "The glacier moves slowly.")
    site_cli("ingest", f"s3://{bucket}/papers/")

    def read_again(*_args: object, **_options: object) -> None:
        raise AssertionError("the object was read again")

    monkeypatch.setattr(ObjectStore, "describe", read_again)
    assert site_cli("ingest", f"s3://{bucket}/papers/").rows == [["in_progress", "1"]]
    put(s3, bucket, "papers/glacier.txt", "Something else.")
    assert site_cli("ingest", f"s3://{bucket}/papers/").code == 1  # now it is read


def test_a_short_outage_of_the_object_store_is_waited_out(
    site_cli: Cli, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_really, tries = ObjectStore.put, itertools.count()

    def put_later(self: ObjectStore, path: Path, *, content_type: str, max_size: int) -> ObjectRef:
        if next(tries) < 4:
            raise StorageUnavailable
        return put_really(self, path, content_type=content_type, max_size=max_size)

    monkeypatch.setattr(ObjectStore, "put", put_later)
    answer = site_cli("ingest", str(notes))
    assert (answer.code, answer.rows) == (0, [["created", "3"]])


def test_a_long_outage_of_the_object_store_is_told_with_what_is_done(
    site_cli: Cli, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registering, "PATIENCE", 0.5)
    site_cli.environment["DOCGRID_STORAGE_ENDPOINT"] = f"127.0.0.1:{free_ports()}"
    answer = site_cli("ingest", str(notes))
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines() == [
        "0 of 3 are done: run the same command again to go on",
        "DOCUMENT-STORAGE-001: the object store can not be reached, try again",
    ]


def test_without_an_active_model_it_says_what_to_do(site_cli: Cli, site: Site, notes: Path) -> None:
    tables.change(site.db, "UPDATE embedding_models SET is_active = false, is_searchable = false")
    answer = site_cli("ingest", str(notes))
    assert answer.code == 1
    assert (
        "EMBEDDING-MODEL-001: no embedding model is active: run `docgrid models activate NAME`" in answer.err
    )


def test_ctrl_c_while_waiting_leaves_the_jobs_in_the_queue(site_cli: Cli, site: Site, notes: Path) -> None:
    with site_cli.start("ingest", "--wait", str(notes)) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("OUTCOME")
        assert process.stdout.readline().split() == ["created", "3"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == ""
    assert tables.value(site.db, "SELECT count(*) FROM embedding_jobs WHERE status = 'PENDING'") == 3
