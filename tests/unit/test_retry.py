from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docgrid_core.jobs import PLANNED_ENDS, EventType, FailureType, StopReason, VersionStatus, WorkerStatus
from docgrid_core.retry import (
    CRASHES,
    INFRASTRUCTURE,
    RETRIED,
    RetryPolicy,
    crash_failure,
    effective_status,
    is_retried,
    stage_failure_event,
)

DELAYS = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=3650))
CHANCES = st.floats(min_value=0, max_value=1)


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    initial, longest = sorted((draw(DELAYS), draw(DELAYS)))
    return RetryPolicy(initial_delay=initial, max_delay=longest, jitter=draw(CHANCES))


@pytest.mark.parametrize(
    ("retries", "seconds"), [(0, 10), (1, 20), (2, 40), (3, 80), (4, 160), (5, 300), (500, 300)]
)
def test_the_wait_doubles_up_to_the_longest(retries: int, seconds: int) -> None:
    assert RetryPolicy().delay(retries, chance=0.5) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 8.0), (0.5, 10.0), (1.0, 12.0)])
def test_jitter_spreads_the_wait_by_a_fifth_either_way(chance: float, seconds: float) -> None:
    assert RetryPolicy().delay(0, chance=chance) == timedelta(seconds=seconds)


@given(policies(), st.integers(min_value=0, max_value=1000), CHANCES)
def test_a_wait_is_never_negative_never_above_the_longest(
    policy: RetryPolicy, retries: int, chance: float
) -> None:
    assert timedelta(0) <= policy.delay(retries, chance=chance) <= policy.max_delay


@given(policies(), st.integers(min_value=0, max_value=50), CHANCES)
def test_a_later_retry_never_waits_less(policy: RetryPolicy, retries: int, chance: float) -> None:
    assert policy.delay(retries, chance=chance) <= policy.delay(retries + 1, chance=chance)


@pytest.mark.parametrize(
    "failure",
    [
        FailureType.STORAGE_UNAVAILABLE,
        FailureType.EMBEDDING_PROVIDER_UNAVAILABLE,
        FailureType.WORKER_INTERNAL_ERROR,
        FailureType.WORKER_LEASE_EXPIRED,
        FailureType.WORKER_OOM_KILLED,
        FailureType.WORKER_CRASHED,
    ],
)
def test_what_may_pass_is_retried_as_often_as_the_job_allows(failure: FailureType) -> None:
    outcomes = [is_retried(failure, retry_count=count, max_retry_count=3) for count in range(5)]
    assert outcomes == [True, True, True, False, False]


@pytest.mark.parametrize("failure", sorted(set(FailureType) - RETRIED))
def test_what_would_fail_again_is_never_retried(failure: FailureType) -> None:
    assert not is_retried(failure, retry_count=0, max_retry_count=3)


def test_a_job_without_retries_fails_at_once() -> None:
    assert not is_retried(FailureType.STORAGE_UNAVAILABLE, retry_count=0, max_retry_count=0)


def test_crashes_are_retried_and_blame_no_document() -> None:
    assert CRASHES < RETRIED < INFRASTRUCTURE
    assert FailureType.DOCUMENT_CONTENT_INVALID not in INFRASTRUCTURE


@pytest.mark.parametrize("version", list(VersionStatus))
def test_the_event_of_a_failure_names_the_stage(version: VersionStatus) -> None:
    embedding = version in {VersionStatus.CHUNKED, VersionStatus.EMBEDDING}
    assert stage_failure_event(version) is (
        EventType.EMBEDDING_FAILED if embedding else EventType.PARSE_FAILED
    )


@pytest.mark.parametrize("reason", sorted(PLANNED_ENDS))
def test_a_planned_end_is_no_crash(reason: StopReason) -> None:
    assert crash_failure(reason) is None


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        (None, FailureType.WORKER_LEASE_EXPIRED),
        (StopReason.OOM_KILLED, FailureType.WORKER_OOM_KILLED),
        (StopReason.ERROR, FailureType.WORKER_CRASHED),
        (StopReason.RESTARTED, FailureType.WORKER_CRASHED),
        (StopReason.HEARTBEAT_OVERDUE, FailureType.WORKER_CRASHED),
    ],
)
def test_an_unplanned_end_is_a_crash_of_its_own_kind(reason: StopReason | None, failure: FailureType) -> None:
    assert crash_failure(reason) is failure
    assert failure in CRASHES


LIVE = [WorkerStatus.ACTIVE, WorkerStatus.IDLE]
ENDED = [WorkerStatus.STOPPED, WorkerStatus.DEAD]
THRESHOLD = timedelta(seconds=30)
JUST_BEFORE = THRESHOLD - timedelta(microseconds=1)


@pytest.mark.parametrize("status", LIVE)
@pytest.mark.parametrize("since", [timedelta(0), JUST_BEFORE, timedelta(seconds=-5)])
def test_a_worker_whose_heartbeat_is_recent_counts_as_it_says(status: WorkerStatus, since: timedelta) -> None:
    assert effective_status(status, since_heartbeat=since, dead_threshold=THRESHOLD) is status


@pytest.mark.parametrize("status", LIVE)
@pytest.mark.parametrize("since", [None, THRESHOLD, timedelta(days=1)])
def test_a_worker_whose_heartbeat_is_as_old_as_its_threshold_is_dead(
    status: WorkerStatus, since: timedelta | None
) -> None:
    assert effective_status(status, since_heartbeat=since, dead_threshold=THRESHOLD) is WorkerStatus.DEAD


@pytest.mark.parametrize("status", ENDED)
@pytest.mark.parametrize("since", [None, timedelta(0), timedelta(days=1)])
def test_an_ended_worker_stays_as_it_ended(status: WorkerStatus, since: timedelta | None) -> None:
    assert effective_status(status, since_heartbeat=since, dead_threshold=THRESHOLD) is status
