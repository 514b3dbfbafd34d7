"""What a person can do about a job that failed, by its failure type. Shown by `docgrid jobs show`."""

from docgrid_core.jobs import FailureType

ADVICE = {
    FailureType.STORAGE_UNAVAILABLE: (
        "The object store did not answer. See that it runs (`docgrid doctor`), then `docgrid jobs retry {job}`."
    ),
    FailureType.STORAGE_OBJECT_MISSING: (
        "The object is gone from the store. Put it back or delete the document; to index it, ingest it again."
    ),
    FailureType.STORAGE_OBJECT_CHANGED: (
        "The object was overwritten after it was registered. Ingest it again: that takes the new bytes."
    ),
    FailureType.STORAGE_CONFIGURATION_INVALID: (
        "The object store refuses bucket, key or credentials. Correct DOCGRID_STORAGE_… of the workers"
        " (`docgrid doctor` checks yours), then `docgrid jobs retry {job}`."
    ),
    FailureType.DOCUMENT_CONTENT_INVALID: (
        "The document itself can not be indexed, for the reason above. Repair it and ingest it again:"
        " a retry reads the same bytes."
    ),
    FailureType.EMBEDDING_PROVIDER_UNAVAILABLE: (
        "The embedding server did not answer, or refused access. See that it runs and that address, key and"
        " model name are right (`docgrid doctor`), then `docgrid jobs retry {job}`."
    ),
    FailureType.EMBEDDING_REQUEST_INVALID: (
        "The embedding server refuses the text, most often as too long for the model. Lower"
        " DOCGRID_CHUNKING_SIZE of the workers, then ingest the document again with --force."
    ),
    FailureType.EMBEDDING_RESULT_INVALID: (
        "The embedding server answered with vectors that can not be right. See that it serves the registered"
        " model (`docgrid models list`, `docgrid doctor`), then `docgrid jobs retry {job}`."
    ),
    FailureType.INDEXING_STATE_INCONSISTENT: (
        "The rows of job, attempt and version disagree. Ingest the document again;"
        " `docgrid doctor --deep` looks for more of it."
    ),
    FailureType.WORKER_INTERNAL_ERROR: (
        "A fault of the worker: its log names it. When that is repaired, `docgrid jobs retry {job}`."
    ),
    FailureType.WORKER_LEASE_EXPIRED: (
        "No worker kept its lease on the job to the end. If workers are overloaded, give them fewer jobs at once"
        " or a longer DOCGRID_WORKER_LEASE_DURATION, then `docgrid jobs retry {job}`."
    ),
    FailureType.WORKER_OOM_KILLED: (
        "Every worker that ran the job ran out of memory. Give them more, then `docgrid jobs retry {job}`."
    ),
    FailureType.WORKER_CRASHED: (
        "Every worker that ran the job ended in the middle of it. If it is always this document, look into it;"
        " if the workers were killed by hand, `docgrid jobs retry {job}`."
    ),
}
