import itertools
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pytest

from docgrid_core import jobs
from docgrid_core.jobs import (
    ATTEMPT_MOVES,
    DOCUMENT_MOVES,
    EMBEDDING_MOVES,
    JOB_LIVE,
    JOB_MOVES,
    JOB_TERMINAL,
    PLANNED_ENDS,
    STOPPED_REASONS,
    VERSION_IN_FLIGHT,
    VERSION_MOVES,
    WORKER_LIVE,
    WORKER_MOVES,
    AttemptStatus,
    DocumentStatus,
    EmbeddingStatus,
    JobStatus,
    StopReason,
    VersionStatus,
    WorkerStatus,
)

Moves = Mapping[Any, frozenset[Any]]
MACHINES: list[tuple[type[StrEnum], Moves, str]] = [
    (JobStatus, JOB_MOVES, "PENDING"),
    (VersionStatus, VERSION_MOVES, "UPLOADED"),
    (AttemptStatus, ATTEMPT_MOVES, "STARTED"),
    (WorkerStatus, WORKER_MOVES, "ACTIVE"),
    (DocumentStatus, DOCUMENT_MOVES, "UPLOADED"),
    (EmbeddingStatus, EMBEDDING_MOVES, "ACTIVE"),
]
each_machine = pytest.mark.parametrize(
    ("states", "moves", "start"), MACHINES, ids=[states.__name__ for states, _, _ in MACHINES]
)


def final_states(moves: Moves) -> set[str]:
    return {str(state) for state, targets in moves.items() if not targets}


@each_machine
def test_moves_are_given_for_every_state_and_lead_to_states(
    states: type[StrEnum], moves: Moves, start: str
) -> None:
    assert set(moves) == set(states)
    assert frozenset().union(*moves.values()) <= set(states)


@each_machine
def test_no_move_leads_to_where_it_starts(states: type[StrEnum], moves: Moves, start: str) -> None:
    assert all(state not in targets for state, targets in moves.items())


@each_machine
def test_every_state_can_be_reached_and_some_end_from_every_state(
    states: type[StrEnum], moves: Moves, start: str
) -> None:
    assert reachable(moves, states(start)) == set(states)
    for state in states:
        assert final_states(moves) & {str(target) for target in reachable(moves, state)}


def reachable(moves: Moves, start: StrEnum) -> set[StrEnum]:
    found = {start}
    while True:
        more = found.union(*(moves[state] for state in found))
        if more == found:
            return found
        found = more


def test_what_has_ended_for_good_never_moves_again() -> None:
    assert final_states(JOB_MOVES) == {"INDEXED", "CANCELED"}
    assert final_states(VERSION_MOVES) == {"INDEXED", "CANCELED"}
    assert final_states(ATTEMPT_MOVES) == {"SUCCESS", "FAILED", "RELEASED"}
    assert final_states(WORKER_MOVES) == {"STOPPED", "DEAD"}
    assert final_states(DOCUMENT_MOVES) == {"DELETED"}
    assert final_states(EMBEDDING_MOVES) == {"STALE"}


def test_a_failed_job_comes_back_only_as_a_pending_one() -> None:
    assert JOB_MOVES[JobStatus.FAILED] == {JobStatus.PENDING}
    assert JobStatus.FAILED in JOB_TERMINAL


def test_a_failed_version_resumes_where_its_chunks_allow() -> None:
    assert VERSION_MOVES[VersionStatus.FAILED] == {VersionStatus.UPLOADED, VersionStatus.CHUNKED}


def test_a_version_in_flight_goes_one_step_forward_or_ends() -> None:
    steps = [*(status for status in VersionStatus if status in VERSION_IN_FLIGHT), VersionStatus.INDEXED]
    for here, following in itertools.pairwise(steps):
        assert VERSION_MOVES[here] == {following, VersionStatus.FAILED, VersionStatus.CANCELED}


def test_a_searchable_document_stays_so_until_it_is_deleted() -> None:
    assert DOCUMENT_MOVES[DocumentStatus.INDEXED] == {DocumentStatus.DELETED}


def test_a_document_can_fail_or_be_deleted_before_it_was_ever_parsed() -> None:
    assert {DocumentStatus.FAILED, DocumentStatus.DELETED} <= DOCUMENT_MOVES[DocumentStatus.UPLOADED]


def test_every_document_that_is_left_can_be_deleted() -> None:
    left = set(DocumentStatus) - {DocumentStatus.DELETED}
    assert all(DocumentStatus.DELETED in DOCUMENT_MOVES[status] for status in left)


def test_live_and_ended_states_part_the_machine() -> None:
    assert set(JobStatus) == JOB_LIVE | JOB_TERMINAL
    assert not JOB_LIVE & JOB_TERMINAL
    assert WORKER_LIVE | {WorkerStatus.STOPPED, WorkerStatus.DEAD} == set(WorkerStatus)


def test_only_a_lost_node_is_a_planned_end_that_leaves_a_dead_worker() -> None:
    assert {StopReason.NODE_LOST} == PLANNED_ENDS - STOPPED_REASONS
    crashes = set(StopReason) - PLANNED_ENDS
    assert crashes == {
        StopReason.OOM_KILLED,
        StopReason.ERROR,
        StopReason.RESTARTED,
        StopReason.HEARTBEAT_OVERDUE,
    }


def test_names_and_values_of_stored_states_are_the_same() -> None:
    enums = [
        e for e in vars(jobs).values() if isinstance(e, type) and issubclass(e, StrEnum) and e is not StrEnum
    ]
    for stored in enums:
        if stored is not StopReason:  # these are Kubernetes' own words
            assert all(member.name == member.value for member in stored)
