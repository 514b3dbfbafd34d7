"""Check that every link from one of our documents to a file leads somewhere. `make check` calls it."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SAMPLES = Path("cli/docgrid_cli/samples")  # what a user might hand in: their links are their own

_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_ELSEWHERE = re.compile(r"[a-z]+:|#")


def main() -> int:
    """Print each broken link; return 1 if there is one."""
    broken = [line for document in list_documents() for line in find_broken(document)]
    for line in broken:
        print(line, file=sys.stderr)
    return 1 if broken else 0


def list_documents() -> list[Path]:
    """Return the Markdown files that git knows, samples left out."""
    command = ["git", "ls-files", "--", "*.md", f":!{SAMPLES}"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / line for line in listed.splitlines()]


def find_broken(document: Path) -> Iterator[str]:
    """Yield one line for each link of the document to a file that is not there."""
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        for match in _LINK.finditer(line):
            target = match["target"]
            if not _ELSEWHERE.match(target) and not (document.parent / target.partition("#")[0]).exists():
                yield f"{document.name}:{number}: {target} is not there"


if __name__ == "__main__":
    sys.exit(main())
