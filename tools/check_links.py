"""Check that every link from one of our documents leads somewhere, and that docs/README.md leads to every page.

`make check` calls it.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INDEX = ROOT / "docs" / "README.md"
SAMPLES = Path("cli/docgrid_cli/samples")  # what a user might hand in: their links are their own

_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_ELSEWHERE = re.compile(r"[a-z]+:|#")


def main() -> int:
    """Print each broken link and each page that the index lacks; return 1 if there is one."""
    documents = list_documents()
    problems = [f"{name(each)}:{line}" for each in documents for line in find_broken(each)]
    pages = {each for each in documents if each.is_relative_to(INDEX.parent)} - {INDEX}
    problems += [f"{name(page)}: {name(INDEX)} has no link to it" for page in pages - find_indexed(INDEX)]
    for problem in sorted(problems):
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def list_documents() -> list[Path]:
    """Return the Markdown files that git knows, samples left out."""
    command = ["git", "ls-files", "--", "*.md", f":!{SAMPLES}"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in listed.splitlines()]


def find_broken(document: Path) -> Iterator[str]:
    """Yield line number and target of each link of the document to a file that is not there."""
    for number, target in find_links(document):
        if not (document.parent / target).exists():
            yield f"{number}: {target} is not there"


def find_indexed(index: Path) -> set[Path]:
    """Return the files that the index links, itself or in a folder's README.md that it links."""
    linked = find_linked(index)
    folders = {each for each in linked if each.name == index.name and each.is_relative_to(index.parent)}
    return linked.union(*(find_linked(folder) for folder in folders))


def find_linked(document: Path) -> set[Path]:
    """Return the files that the document links."""
    return {(document.parent / target).resolve() for _, target in find_links(document)}


def find_links(document: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and target, without its anchor, of each link to a file."""
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        for match in _LINK.finditer(line):
            if not _ELSEWHERE.match(match["target"]):
                yield number, match["target"].partition("#")[0]


def name(document: Path) -> Path:
    """Return the document's path as a person writes it."""
    return document.relative_to(ROOT)


if __name__ == "__main__":
    sys.exit(main())
