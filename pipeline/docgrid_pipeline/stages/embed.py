"""The embed stage: ask the provider for the vectors of a version's chunks, store them all at once."""

from docgrid_core.store import embed as store
from docgrid_pipeline.embeddings import Purpose
from docgrid_pipeline.stages import Execution, Tools


def run(tools: Tools, execution: Execution) -> None:
    """Store the vectors of the job's version, unless a whole set is stored already.

    Raises the errors of the provider and the refusals of the transactions.
    """
    task = execution.persist(lambda: store.prepare(tools.db, execution.ownership))
    if task is None:
        return
    vectors = tools.provider.embed([chunk.text for chunk in task.chunks], purpose=Purpose.PASSAGE)
    execution.check()
    execution.persist(
        lambda: store.store(
            tools.db,
            execution.ownership,
            task,
            vectors,
            lease_duration=tools.lease_duration,
            timeout=tools.store_timeout,
        )
    )
