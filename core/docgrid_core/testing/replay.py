"""What each event may say of its job's status: the event log replays to the row, move by move."""

from collections.abc import Mapping, Set

from docgrid_core.jobs import EventType, JobStatus

Move = tuple[JobStatus | None, JobStatus]

_PENDING, _PROCESSING = JobStatus.PENDING, JobStatus.PROCESSING
_BACK: Set[Move] = {(_PROCESSING, _PENDING)}
_STAYS: Set[Move] = {(_PROCESSING, _PROCESSING)}

EVENT_MOVES: Mapping[EventType, Set[Move]] = {
    EventType.JOB_CREATED: {(None, _PENDING)},
    EventType.LOCKED: {(_PENDING, _PROCESSING)},
    EventType.PARSE_STARTED: _STAYS,
    EventType.PARSE_FAILED: _STAYS,
    EventType.CHUNKED: _STAYS,
    EventType.EMBEDDING_STARTED: _STAYS,
    EventType.EMBEDDING_FAILED: _STAYS,
    EventType.LEASE_EXPIRED: _STAYS,
    EventType.RELEASED: _BACK,
    EventType.DEFERRED: _BACK,
    EventType.RETRY: _BACK,
    EventType.INDEXED: {(_PROCESSING, JobStatus.INDEXED)},
    EventType.FAILED: {(_PROCESSING, JobStatus.FAILED)},
    EventType.CANCELED: {(_PENDING, JobStatus.CANCELED), (_PROCESSING, JobStatus.CANCELED)},
    EventType.MANUAL_RETRY: {(JobStatus.FAILED, _PENDING)},
}
"""Together they are the moves of `jobs.JOB_MOVES`, which a test compares."""
