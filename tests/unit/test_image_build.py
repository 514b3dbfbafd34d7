"""How images are made: what a build depends on, archives, what is kept; no builder is called."""

import io
import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from support.cluster.errors import ClusterUnavailable
from support.image import archive, inputs, sandbox
from support.image.archive import Image
from support.image.build import prune
from support.image.contents import find_text, read_config, read_digests, read_files, unpack

SMALL = inputs.Inputs(files={"core/a.py": b"a"}, arguments={"VERSION": "1"}, backing_pins="numpy==1")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder with all that the image is made of, and more."""
    for name in (*inputs.FILES, "requirements.lock"):
        shutil.copy(inputs.ROOT / name, tmp_path / name)
    for folder in (*inputs.FOLDERS, "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file.py").write_text("x = 1\n")
    return tmp_path


@pytest.mark.parametrize("name", [*inputs.FILES, *(f"{folder}/file.py" for folder in inputs.FOLDERS)])
def test_a_change_of_anything_in_the_image_is_another_image(checkout: Path, name: str) -> None:
    before = inputs.read(checkout).key
    path = checkout / name
    path.write_text(f"{path.read_text()}\n# changed\n")
    assert inputs.read(checkout).key != before


def test_a_new_name_of_a_file_is_another_image(checkout: Path) -> None:
    before = inputs.read(checkout).key
    (checkout / "core" / "file.py").rename(checkout / "core" / "other.py")
    assert inputs.read(checkout).key != before


def test_what_is_not_in_the_image_changes_nothing(checkout: Path) -> None:
    before = inputs.read(checkout)
    (checkout / "docs" / "file.py").write_text("y = 2\n")
    (checkout / "core" / "__pycache__").mkdir()
    (checkout / "core" / "__pycache__" / "file.pyc").write_bytes(b"\0")
    assert inputs.read(checkout) == before


@pytest.mark.parametrize(
    "other",
    [
        replace(SMALL, arguments={"VERSION": "2"}),
        replace(SMALL, arguments={"VERSION": "1", "REVISION": "1"}),
        replace(SMALL, backing_pins="numpy==2"),
        replace(SMALL, files={"core/a.py": b"b"}),
    ],
)
def test_build_arguments_and_pins_are_part_of_the_key(other: inputs.Inputs) -> None:
    assert other.key != SMALL.key


def test_the_servers_of_the_tests_do_not_depend_on_our_sources() -> None:
    same = replace(SMALL, files={"core/a.py": b"b"}, arguments={})
    assert same.backing_key("base") == SMALL.backing_key("base")
    assert SMALL.backing_key("another base") != SMALL.backing_key("base")
    script = replace(SMALL, files={"recipe/backing/run-model": b""})
    assert script.backing_key("base") != SMALL.backing_key("base")


def test_pins_are_picked_with_their_hashes() -> None:
    lock = "numpy==1 ; python_version < '3.12' \\\n    --hash=sha256:0\nnumpy==2 \\\n    --hash=sha256:1\ntoml==3\n"
    assert inputs.pick_pins(lock, ["numpy"]) == lock.removesuffix("toml==3\n")
    with pytest.raises(ValueError, match=r"not in the lock file: tom$"):
        inputs.pick_pins(lock, ["tom", "toml"])


def test_dockerfile_and_ignore_file_name_the_version_and_the_files_that_they_copy() -> None:
    dockerfile = (inputs.ROOT / "Dockerfile").read_text()
    assert f"ARG VERSION={inputs.read().arguments['VERSION']}\n" in dockerfile
    ignored = (inputs.ROOT / ".dockerignore").read_text().splitlines()
    needed = {*inputs.FILES, *inputs.FOLDERS} - {"Dockerfile", ".dockerignore"}
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == needed


def test_the_sets_of_images_that_were_used_last_are_kept(tmp_path: Path) -> None:
    for age, name in enumerate(("newest", "middle", "oldest")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "docgrid.tar").touch()
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    prune(tmp_path.iterdir(), keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "middle"}


def test_layers_lie_on_each_other_and_hide_what_is_below(tmp_path: Path) -> None:
    low = write(tmp_path, "low", {"etc/kept": b"1", "etc/changed": b"2", "etc/gone": b"3", "opt/a/b": b"4"})
    high = write(tmp_path, "high", {"etc/changed": b"5", "etc/.wh.gone": b"", "opt/.wh.a": b""})
    both = archive.stack(low, high, Image("localhost/both:1", tmp_path / "both.tar"))
    assert set(read_files(both)) == {"etc/kept", "etc/changed"}
    assert read_digests(both)["etc/changed"] == read_digests(high)["etc/changed"]
    assert find_text(both, "4") == ["opt/a/b"]  # hidden, and still there for whoever has the layer
    (tmp_path / "root").mkdir()
    unpack(both, tmp_path / "root")
    assert sorted(path.name for path in (tmp_path / "root").rglob("*") if path.is_file()) == [
        "changed",
        "kept",
    ]
    assert (tmp_path / "root" / "etc" / "changed").read_bytes() == b"5"


def test_a_stacked_image_keeps_the_settings_of_the_lower_one(tmp_path: Path) -> None:
    low, high = write(tmp_path, "low", {"a": b""}), write(tmp_path, "high", {"b": b""})
    both = archive.stack(low, high, Image("localhost/both:1", tmp_path / "both.tar"))
    assert read_config(both)["config"] == read_config(low)["config"]
    parts = [read_config(image)["rootfs"]["diff_ids"] for image in (low, high)]
    assert read_config(both)["rootfs"]["diff_ids"] == [*parts[0], *parts[1]]


def test_other_labels_are_the_same_layers(tmp_path: Path) -> None:
    image = write(tmp_path, "one", {"a": b""})
    other = archive.relabel(image, Image("localhost/one:2", tmp_path / "two.tar"), {"version": "2"})
    assert read_config(other)["rootfs"] == read_config(image)["rootfs"]
    assert read_config(other)["config"] == {"User": "one", "Labels": {"version": "2"}}
    with tarfile.open(other.archive) as content:
        assert archive.read_description(content)[0]["RepoTags"] == ["localhost/one:2"]


def test_a_machine_that_can_not_build_says_what_does_it_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterUnavailable, match=r"only root can make one \(docker build"):
        sandbox.require_rights()


def write(folder: Path, name: str, files: dict[str, bytes]) -> Image:
    """Write an image with one layer of these files, run by a user of its own name."""
    layer = folder / f"{name}.layer"
    with tarfile.open(layer, "w") as content:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            content.addfile(member, io.BytesIO(data))
    image = Image(f"localhost/{name}:1", folder / f"{name}.tar")
    archive.write(image, layer, {"User": name})
    return image
