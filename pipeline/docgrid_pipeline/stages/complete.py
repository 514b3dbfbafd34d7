"""The last stage: switch the document to the version that was indexed."""

from docgrid_core.records import Completion
from docgrid_core.store import complete as store
from docgrid_pipeline.stages import Execution, Tools


def run(tools: Tools, execution: Execution) -> Completion:
    """Make the version searchable; raises the refusals of the completion."""
    return execution.persist(lambda: store.complete(tools.db, execution.ownership))
