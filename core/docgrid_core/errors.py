"""The error tree: one class for each code that a caller can meet, raised by core and pipeline.

::

    DocGridError
    ├── SettingsError                     a setting is wrong; nothing was started
    ├── RefusedError                      the request is well formed, the state says no (the 4xx codes)
    │   ├── WorkerNotFound, WorkerFenced
    │   ├── JobNotFound, JobNotProcessing, JobOwnershipLost, LeaseExpired, AttemptMismatch, …
    │   ├── DocumentNotFound, VersionInProgress, CompletionNotAllowed, NewerVersionExists, …
    │   └── Content…                      what is wrong with a document's bytes (DOCUMENT-PARSING-…)
    └── FaultError                        something of ours or below us failed (the 5xx codes)
        ├── Busy (StatementTimeout), DatabaseUnavailable (DatabaseUnusable), DatabaseForbids, InternalError, DiskFull
        ├── StorageUnavailable, StorageMisconfigured
        └── OwnershipIncomplete, EmbeddingSetInconsistent, …

Texts of a `FaultError` are fixed: no SQL, path, host, row or foreign exception text is ever in one.
What an operator needs beyond it (an SQLSTATE, a constraint's name) is in `detail`, for logs only.
"""

from typing import ClassVar


class DocGridError(Exception):
    """The root: every error that a user of DocGrid is meant to see."""

    code: ClassVar[str] = "COMMON-006"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class SettingsError(DocGridError):
    """A setting is missing or breaks its rule; the message names key, value and rule."""

    code = "SETTINGS"

    def __str__(self) -> str:
        return self.message


# --- refusals ---------------------------------------------------------------------------------------


class RefusedError(DocGridError):
    """The current state does not allow the request; asking again unchanged gives the same answer."""


class BadParameter(RefusedError):
    """An argument is out of its range."""

    code = "COMMON-002"


class WorkerNotFound(RefusedError):
    """No worker row has this id and instance."""

    code = "WORKER-001"


class WorkerFenced(RefusedError):
    """The worker is stopped, dead, or its heartbeat is overdue."""

    code = "WORKER-002"


class JobNotFound(RefusedError):
    """No job has this id."""

    code = "EMBEDDING-JOB-001"


class JobNotProcessing(RefusedError):
    """The job is not PROCESSING (any more)."""

    code = "EMBEDDING-JOB-002"


class JobOwnershipLost(RefusedError):
    """Another claim owns the job: the worker or the token differs."""

    code = "EMBEDDING-JOB-003"


class LeaseExpired(RefusedError):
    """The lease of this claim has run out by the database's clock."""

    code = "EMBEDDING-JOB-004"


class AttemptMismatch(RefusedError):
    """The attempt is not the STARTED attempt of this claim."""

    code = "EMBEDDING-JOB-006"


class AttemptAlreadyEnded(RefusedError):
    """The attempt has ended with a different report."""

    code = "EMBEDDING-JOB-007"


class RetryNotAllowed(RefusedError):
    """The job can not be retried by hand in its present state."""

    code = "EMBEDDING-JOB-008"


class CancelNotAllowed(RefusedError):
    """The job has already ended."""

    code = "EMBEDDING-JOB-009"


class DocumentNotFound(RefusedError):
    """No document has this id, or it is deleted."""

    code = "DOCUMENT-001"


class VersionInProgress(RefusedError):
    """A different version of the document is being indexed."""

    code = "DOCUMENT-VERSION-002"


class VersionStateNotAllowed(RefusedError):
    """The version is in a state that does not allow the step."""

    code = "DOCUMENT-VERSION-003"


class ChunkingNotAllowed(RefusedError):
    """The version is in a state in which it can not be parsed and chunked."""

    code = "DOCUMENT-VERSION-005"


class EmbeddingNotAllowed(RefusedError):
    """The version is in a state in which it can not be embedded."""

    code = "DOCUMENT-VERSION-006"


class CompletionNotAllowed(RefusedError):
    """Model, version or document do not allow the completion."""

    code = "DOCUMENT-INDEXING-001"


class NewerVersionExists(RefusedError):
    """A newer version of the document was registered: this one must not become searchable."""

    code = "DOCUMENT-INDEXING-002"


class StorageObjectMissing(RefusedError):
    """The object is not in the store."""

    code = "DOCUMENT-STORAGE-002"


class StorageObjectChanged(RefusedError):
    """The object is no longer the one that was registered: its hash differs."""

    code = "DOCUMENT-STORAGE-004"


class ModelNotSearchable(RefusedError):
    """No embedding model is active and searchable."""

    code = "EMBEDDING-MODEL-001"


class ModelNotFound(RefusedError):
    """No embedding model has this name."""

    code = "EMBEDDING-MODEL-002"


class ModelChangeNotAllowed(RefusedError):
    """The model can not be added, activated or dropped in its present state."""

    code = "EMBEDDING-MODEL-003"


class ContentError(RefusedError):
    """The bytes of a document can not be indexed; never retried. Base of the parsing codes."""


class ContentUnsupported(ContentError):
    """The type of the document is not one that DocGrid reads."""

    code = "DOCUMENT-PARSING-001"


class ContentEmpty(ContentError):
    """The document has no bytes or no text."""

    code = "DOCUMENT-PARSING-002"


class ContentNotUtf8(ContentError):
    """The text is not UTF-8."""

    code = "DOCUMENT-PARSING-003"


class ContentUnreadable(ContentError):
    """The document's format is broken."""

    code = "DOCUMENT-PARSING-007"


class ContentOverLimit(ContentError):
    """The document is over one of the limits: size, chunks."""

    code = "DOCUMENT-PARSING-008"


# --- faults -----------------------------------------------------------------------------------------


class FaultError(DocGridError):
    """Something below the request failed; the text is fixed for each code."""

    text: ClassVar[str] = "an internal error occurred"

    def __init__(self, detail: str = "") -> None:
        super().__init__(self.text)
        self.detail = detail


class Busy(FaultError):
    """A lock could not be had within the bounded number of tries."""

    code = "COMMON-005"
    text = "the database is busy, try again"


class StatementTimeout(Busy):
    """A statement took longer than its limit; the same one again is likely to."""

    code = "COMMON-005"
    text = "the database took too long over a statement, try again when it has less to do"


class DatabaseForbids(FaultError):
    """The database user lacks a right; workers need DML and TEMPORARY, migrations and models own the tables."""

    code = "DATABASE-001"
    text = "the database user lacks a right for this: `docgrid migrate` and `docgrid models` need the tables' owner"


class DatabaseUnavailable(FaultError):
    """The database can not be reached, is starting, stopping, or only reads."""

    code = "COMMON-005"
    text = "the database can not be reached, try again"


class InternalError(FaultError):
    """A statement failed for a reason that no other class names."""

    code = "COMMON-006"
    text = "an internal error occurred"


class DiskFull(FaultError):
    """No space is left for the temporary copy of a document."""

    code = "COMMON-006"
    text = "no space is left on the disk for temporary files"


class DatabaseUnusable(DatabaseUnavailable):
    """The database answers, but not as it must: password, database, version, pgvector or schema revision.

    The one fault whose text varies: it says what was found and what to do.
    """

    code = "DATABASE-SETUP"

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = message


class OwnershipIncomplete(FaultError):
    """A PROCESSING job lacks one of its ownership fields."""

    code = "EMBEDDING-JOB-005"
    text = "the job's ownership fields are incomplete"


class IndexingSetInconsistent(FaultError):
    """The embeddings of a version are not exactly those of its chunks."""

    code = "DOCUMENT-INDEXING-003"
    text = "the version's chunks and embeddings do not match"


class FailureInconsistent(FaultError):
    """Job, attempt and version disagree when a failure is recorded."""

    code = "DOCUMENT-INDEXING-004"
    text = "the job's rows disagree about its failure"


class StorageUnavailable(FaultError):
    """The object store does not answer, or answers with a server error."""

    code = "DOCUMENT-STORAGE-001"
    text = "the object store can not be reached, try again"


class StorageMisconfigured(FaultError):
    """The object store refuses the credentials or has no such bucket."""

    code = "DOCUMENT-STORAGE-003"
    text = "the object store refuses the request: check bucket and credentials"


class EmbeddingSetInconsistent(FaultError):
    """The stored chunks or embeddings are not a whole set, or changed while they were embedded."""

    code = "DOCUMENT-EMBEDDING-001"
    text = "the version's stored chunks or embeddings are not a whole set"


class VectorInvalid(FaultError):
    """A vector has the wrong dimension, is not finite, or is all zero."""

    code = "DOCUMENT-EMBEDDING-002"
    text = "the embedding result is not valid"


class ProviderUnavailable(FaultError):
    """The embedding server does not answer, or answers with a server error; retried.

    `retry_after` (seconds, or None) is what the server asked for.
    """

    code = "EMBEDDING-PROVIDER-001"
    text = "the embedding server can not be reached, try again"

    def __init__(self, detail: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after = retry_after


class ProviderMisconfigured(FaultError):
    """The embedding server does not let us in, or does not know the model: no document is at fault."""

    code = "EMBEDDING-PROVIDER-003"
    text = "the embedding server refuses access: check its address, the API key and the model's name"


class ProviderRefused(FaultError):
    """The embedding server answers 4xx: the request can not succeed as it is."""

    code = "EMBEDDING-PROVIDER-002"
    text = "the embedding server refused the request"
