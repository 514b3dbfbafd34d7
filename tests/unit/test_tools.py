"""The checks of `make check` find what they are for."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from check_links import find_broken, find_indexed
from lock_dependencies import LOCK, PYPROJECT, find_part_problems, find_problems

PROJECT: dict[str, Any] = {
    "build-system": {"requires": ["hatchling==1.0"]},
    "project": {
        "name": "docgrid",
        "dependencies": ["SQLAlchemy>=2.1,<2.2"],
        "optional-dependencies": {"dev": ["docgrid[cli]", "types-PyYAML"]},
    },
}
HASH = f" \\\n    --hash=sha256:{'0' * 64}\n"
PINNED = f"hatchling==1.0{HASH}sqlalchemy==2.1.9{HASH}types-pyyaml==6.0 ; python_version >= '3.11'{HASH}"


def test_the_lock_file_of_this_repository_fulfils_its_pyproject() -> None:
    assert find_problems(tomllib.loads(PYPROJECT.read_text()), LOCK.read_text()) == []


def test_a_lock_file_that_pins_everything_with_hashes_is_right() -> None:
    assert find_problems(PROJECT, PINNED) == []


def test_a_part_of_the_lock_file_has_its_pins_and_misses_nothing() -> None:
    part = f"sqlalchemy==2.1.9{HASH}"
    assert find_part_problems(["SQLAlchemy>=2.1"], PINNED, "part.lock", part) == []
    assert find_part_problems(["SQLAlchemy", "hatchling"], PINNED, "part.lock", part) == [
        "hatchling is not in part.lock: run make lock"
    ]
    assert find_part_problems([], PINNED, "part.lock", part.replace("2.1.9", "2.1.8")) == [
        "part.lock pins sqlalchemy==2.1.8, requirements.lock does not: run make lock"
    ]
    assert find_part_problems([], PINNED, "part.lock", "sqlalchemy==2.1.9\n") != []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "sqlalchemy==2.1.9",
            "flask==3.0",
            "SQLAlchemy<2.2,>=2.1 is not in requirements.lock: run make lock",
        ),
        (
            "sqlalchemy==2.1.9",
            "sqlalchemy==2.2.0",
            "requirements.lock pins sqlalchemy==2.2.0, pyproject.toml wants",
        ),
        ("hatchling==1.0", "hatchling==1.1", "requirements.lock pins hatchling==1.1, pyproject.toml wants"),
        (f"sqlalchemy==2.1.9{HASH}", "sqlalchemy==2.1.9\n", "requirements.lock: sqlalchemy has no hash"),
        (
            "types-pyyaml==6.0",
            "types-pyyaml @ file:///tmp/x",
            "requirements.lock names a place: types-pyyaml",
        ),
        (
            "hatchling",
            "--index-url https://localhost/simple\nhatchling",
            "requirements.lock names a place: --index",
        ),
    ],
)
def test_what_is_wrong_with_a_lock_file_is_named(old: str, new: str, problem: str) -> None:
    assert old in PINNED
    assert find_problems(PROJECT, PINNED.replace(old, new))[0].startswith(problem)


def test_a_package_with_a_pin_for_each_platform_must_be_right_on_all() -> None:
    both = f"{PINNED}sqlalchemy==2.0.0 ; sys_platform == 'win32'{HASH}"
    (problem,) = find_problems(PROJECT, both)
    assert problem.startswith("requirements.lock pins sqlalchemy==2.0.0")


def test_a_link_to_a_file_that_is_not_there_is_found_and_no_other(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(
        "[a](page.md) [b](page.md#part) [c](#part) [d](https://127.0.0.1/x) [e](mailto:x@y)\n[f](gone.md#x)\n"
    )
    assert list(find_broken(document)) == ["2: gone.md is not there"]


def test_an_index_leads_to_what_it_links_and_what_a_folders_index_links(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("[folder](folder/README.md) [page](page.md) [up](../README.md)\n")
    (tmp_path / "page.md").write_text("[other](other.md)\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "README.md").write_text("[inner](inner.md)\n")
    found = {each for each in find_indexed(tmp_path / "README.md") if each.is_relative_to(tmp_path)}
    assert found == {folder / "README.md", folder / "inner.md", tmp_path / "page.md"}
