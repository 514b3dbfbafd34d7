"""The checker of the invariants: after every concurrency and chaos test, and for `docgrid doctor --deep`.

`violations` reads a database at rest or at work: one snapshot shows it as it was between two commits.
`SearchViewReader` looks at what search sees again and again while other things happen.
"""

import threading
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self

from sqlalchemy import text

from docgrid_core.database import Database, Transaction, transactional
from docgrid_core.errors import Busy, DatabaseUnavailable
from docgrid_core.store.queries.answers import read_snapshot
from docgrid_core.store.search import VISIBLE
from docgrid_core.testing.checks import CHECKS

MAX_SUBJECTS = 20
"""The most violations that are told of each check: the first ones say what is wrong."""

CHECK_TIMEOUT = timedelta(minutes=10)

LOOK = "was INDEXED, but search does not see exactly one complete version of it"

_SEARCHABLE_MODEL = "(SELECT id FROM embedding_models WHERE is_active AND is_searchable)"

# Of each document that was ever INDEXED and is not deleted, what search sees must be one version, whole.
CHECK_SEARCH_VIEW = text(
    f"""
    SELECT d.id FROM documents d
    LEFT JOIN (
      SELECT e.document_id, count(*) AS chunks, min(e.document_version_id) AS version_id,
             count(DISTINCT e.document_version_id) AS versions
      FROM {VISIBLE.format(model_id=_SEARCHABLE_MODEL)}
      GROUP BY e.document_id
    ) AS seen ON seen.document_id = d.id
    WHERE d.deleted_at IS NULL
      AND EXISTS (SELECT FROM document_versions v WHERE v.document_id = d.id AND v.status = 'INDEXED')
      AND (seen.versions IS DISTINCT FROM 1
           OR seen.chunks <> (SELECT count(*) FROM document_chunks c
                              WHERE c.document_version_id = seen.version_id))
    ORDER BY d.id
    LIMIT :limit
    """  # noqa: S608 - composed of constants
)


@dataclass(frozen=True, slots=True)
class Violation:
    """One subject (`job 7`) that breaks an invariant, and how."""

    invariant: int
    subject: str
    what: str

    def __str__(self) -> str:
        return f"invariant {self.invariant}: {self.subject} {self.what}"


@transactional
def violations(tx: Transaction) -> list[Violation]:
    """Return what breaks invariants 1 to 5, at most 20 subjects of each kind; an empty list is a whole database.

    Reads every table once or twice: seconds for a million rows.
    """
    read_snapshot(tx)
    tx.limit_statements(CHECK_TIMEOUT)
    found = []
    for check in CHECKS:
        query = text(f"SELECT DISTINCT id FROM ({check.query}) AS broken (id) ORDER BY id LIMIT :limit")  # noqa: S608
        for (subject,) in tx.execute(query, limit=MAX_SUBJECTS):
            found.append(Violation(check.number, f"{check.subject} {subject}", check.what))
    return found + _look(tx)


@transactional
def check_search_view(tx: Transaction) -> list[Violation]:
    """Return the documents of which search sees, at this moment, anything but one complete version."""
    return _look(tx)


class SearchViewReader:
    """A continuous reader of what search sees, in a thread of its own, for as long as the `with` block runs.

    `looks` counts the moments at which it looked, `violations` are what it saw. A database that can not be
    reached is asked again: that nothing can be seen is no violation.
    """

    def __init__(self, db: Database) -> None:
        self.looks = 0
        self.violations: set[Violation] = set()
        self._db = db
        self._error: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="search view reader", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Tell whether it still looks: False after an error, which the end of the block raises."""
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.violations.update(check_search_view(self._db))
            except (Busy, DatabaseUnavailable):
                self._stopping.wait(0.1)
            except Exception as error:  # noqa: BLE001 - raised where the block ends
                self._error = error
                return
            else:
                self.looks += 1
                self._stopping.wait(0.002)  # leaves the machine to what is being watched


def _look(tx: Transaction) -> list[Violation]:
    rows = tx.execute(CHECK_SEARCH_VIEW, limit=MAX_SUBJECTS)
    return [Violation(5, f"document {row[0]}", LOOK) for row in rows]
