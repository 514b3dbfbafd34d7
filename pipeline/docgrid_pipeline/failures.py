"""What an error means for the job in which it was raised: its failure type and the words for it.

The one place where errors of the stages become reports. A message is ours: the error's own text when it is a
refusal about the document, the fixed text of its class otherwise.
"""

from datetime import timedelta

from docgrid_core.errors import (
    ChunkingNotAllowed,
    CompletionNotAllowed,
    ContentError,
    DocGridError,
    EmbeddingNotAllowed,
    EmbeddingSetInconsistent,
    FailureInconsistent,
    IndexingSetInconsistent,
    ProviderMisconfigured,
    ProviderRefused,
    ProviderUnavailable,
    StorageMisconfigured,
    StorageObjectChanged,
    StorageObjectMissing,
    StorageUnavailable,
    VectorInvalid,
)
from docgrid_core.jobs import FailureType
from docgrid_core.store.fail import Report

# The first class that fits decides.
_TYPES: tuple[tuple[type[DocGridError], FailureType], ...] = (
    (ContentError, FailureType.DOCUMENT_CONTENT_INVALID),
    (StorageObjectMissing, FailureType.STORAGE_OBJECT_MISSING),
    (StorageObjectChanged, FailureType.STORAGE_OBJECT_CHANGED),
    (StorageUnavailable, FailureType.STORAGE_UNAVAILABLE),
    (StorageMisconfigured, FailureType.STORAGE_CONFIGURATION_INVALID),
    (ProviderUnavailable, FailureType.EMBEDDING_PROVIDER_UNAVAILABLE),
    (ProviderMisconfigured, FailureType.EMBEDDING_PROVIDER_UNAVAILABLE),
    (ProviderRefused, FailureType.EMBEDDING_REQUEST_INVALID),
    (VectorInvalid, FailureType.EMBEDDING_RESULT_INVALID),
    (ChunkingNotAllowed, FailureType.INDEXING_STATE_INCONSISTENT),
    (EmbeddingNotAllowed, FailureType.INDEXING_STATE_INCONSISTENT),
    (CompletionNotAllowed, FailureType.INDEXING_STATE_INCONSISTENT),
    (EmbeddingSetInconsistent, FailureType.INDEXING_STATE_INCONSISTENT),
    (IndexingSetInconsistent, FailureType.INDEXING_STATE_INCONSISTENT),
    (FailureInconsistent, FailureType.INDEXING_STATE_INCONSISTENT),
)

INTERNAL_MESSAGE = "an unexpected error in the worker: its log names it"


def report_for(error: Exception) -> Report:
    """Return the report for an error that ended an execution; anything unknown is WORKER_INTERNAL_ERROR."""
    if not isinstance(error, DocGridError):
        return Report(FailureType.WORKER_INTERNAL_ERROR, INTERNAL_MESSAGE)
    failure_type = next(
        (known for base, known in _TYPES if isinstance(error, base)), FailureType.WORKER_INTERNAL_ERROR
    )
    return Report(failure_type, error.message, error.code, _retry_after(error))


def _retry_after(error: DocGridError) -> timedelta:
    if isinstance(error, ProviderUnavailable) and error.retry_after:
        return timedelta(seconds=error.retry_after)
    return timedelta(0)
