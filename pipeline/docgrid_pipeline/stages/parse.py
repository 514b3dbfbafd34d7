"""The parse stage: read the object, parse it, cut it into chunks, store them."""

import tempfile
from datetime import timedelta
from pathlib import Path

from docgrid_core.errors import StorageObjectMissing, StorageUnavailable
from docgrid_core.records import NewChunk, ParseTask
from docgrid_core.store import parse as store
from docgrid_pipeline.chunking import chunk
from docgrid_pipeline.parsing import parse
from docgrid_pipeline.stages import Execution, Tools

SETTLING_TIME = timedelta(minutes=2)


def run(tools: Tools, execution: Execution) -> None:
    """Store the chunks of the job's version, unless they are stored already.

    Raises the content errors of parsing, the errors of the object store, and the refusals of the transactions.
    """
    task = execution.persist(lambda: store.prepare(tools.db, execution.ownership))
    if task is None:
        return
    chunks = _read(tools, execution, task)
    execution.check()
    execution.persist(
        lambda: store.store(tools.db, execution.ownership, chunks, lease_duration=tools.lease_duration)
    )


def _read(tools: Tools, execution: Execution, task: ParseTask) -> list[NewChunk]:
    with tempfile.TemporaryDirectory(prefix="docgrid-") as folder:
        path = Path(folder) / "object"
        _fetch(tools, task, path)
        execution.check()
        return chunk(parse(path, task.document_type), tools.chunking)


def _fetch(tools: Tools, task: ParseTask, path: Path) -> None:
    try:
        tools.objects.fetch(task.source, to=path, max_size=tools.parsing.max_file_size)
    except StorageObjectMissing:
        # A store may show an object only some time after it was written; later it is gone for good.
        if task.age < SETTLING_TIME:
            raise StorageUnavailable("the object is not there yet") from None
        raise
