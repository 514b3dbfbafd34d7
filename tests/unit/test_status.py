"""The status of an IndexingWorker: what is written, and what stays as it is."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from docgrid_operator.conditions import (
    Condition,
    DatabaseState,
    ModelState,
    Status,
    derive_conditions,
)
from docgrid_operator.kinds import Object
from docgrid_operator.status import Counts, build_status, leave_out
from support.pods import build_pod, waiting
from support.pools import UID, build_pool

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LATER = NOON + timedelta(minutes=5)
COUNTS = Counts(
    model=ModelState.READY,
    workers={"active": 1, "idle": 0, "stopped": 2, "dead": 0},
    queue={
        "ready": 3,
        "delayed": 0,
        "processing": 1,
        "failed": 0,
        "oldestReadyAt": "2026-03-01T11:00:00Z",
    },
)
DEPLOYMENT: Object = {
    "metadata": {"name": "pool", "generation": 1},
    "status": {"observedGeneration": 1, "replicas": 2, "readyReplicas": 1},
}


def status(
    *conditions: Condition,
    previous: Object | None = None,
    counts: Counts | None = COUNTS,
    deployment: Object | None = DEPLOYMENT,
    now: datetime = NOON,
    **pool: Any,
) -> Object:
    built = build_status(
        build_pool(**pool),
        deployment=deployment,
        counts=counts,
        conditions=conditions,
        previous=previous or {},
        now=now,
    )
    found: Object = built["status"]
    return found


def condition(status: Status = Status.TRUE, reason: str = "Because", type_: str = "Available") -> Condition:
    return Condition(type_, status, reason, "so it is")


def test_the_status_says_what_the_deployment_and_the_database_count() -> None:
    assert status(condition(), generation=7) == {
        "observedGeneration": 7,
        "replicas": 2,
        "readyReplicas": 1,
        "selector": "docgrid.dev/indexing-worker=pool",
        "workers": COUNTS.workers,
        "queue": COUNTS.queue,
        "conditions": [
            {
                "type": "Available",
                "status": "True",
                "reason": "Because",
                "message": "so it is",
                "observedGeneration": 7,
                "lastTransitionTime": "2026-03-01T12:00:00Z",
            }
        ],
    }


def test_nothing_but_the_status_is_written_and_of_exactly_this_object() -> None:
    built = build_status(build_pool(), deployment=None, counts=None, conditions=[], previous={}, now=NOON)
    assert built.keys() == {"apiVersion", "kind", "metadata", "status"}
    assert built["metadata"] == {"name": "pool", "namespace": "documents", "uid": UID}


def test_without_a_deployment_there_are_no_workers() -> None:
    for nothing in (None, {"metadata": {"name": "pool"}}):
        told = status(deployment=nothing)
        assert (told["replicas"], told["readyReplicas"]) == (0, 0)


def test_the_selector_is_that_of_the_pods() -> None:
    key, value = status()["selector"].split("=")
    assert build_pool().name == value
    assert key == "docgrid.dev/indexing-worker"


def test_counts_stay_while_the_database_can_not_be_asked() -> None:
    before = status()
    after = status(previous=before, counts=None)
    assert (after["workers"], after["queue"]) == (COUNTS.workers, COUNTS.queue)


def test_what_was_known_of_a_pool_stays_until_a_new_operator_has_asked() -> None:
    asked = condition(reason="ModelActive", type_="ModelReady")
    not_yet = condition(Status.UNKNOWN, "NotAskedYet", "ModelReady")
    before = status(asked)
    assert status(not_yet, previous=before, now=LATER)["conditions"] == before["conditions"]
    assert status(not_yet)["conditions"][0]["reason"] == "NotAskedYet"
    away = condition(Status.UNKNOWN, "DatabaseNotAsked", "ModelReady")
    assert status(away, previous=before)["conditions"][0]["reason"] == "DatabaseNotAsked"


def test_counts_that_were_never_taken_are_not_there() -> None:
    assert not {"workers", "queue"} & status(counts=None).keys()


def test_a_queue_in_which_nobody_waits_has_no_oldest_job() -> None:
    counts = Counts(ModelState.READY, COUNTS.workers, {**COUNTS.queue, "oldestReadyAt": None})
    assert "oldestReadyAt" not in status(previous=status(), counts=counts)["queue"]


def test_a_conditions_time_stays_while_its_status_does_whatever_else_is_said() -> None:
    before = status(condition(Status.FALSE, "CrashLoopBackOff"))
    after = status(condition(Status.FALSE, "ImagePullBackOff"), previous=before, now=LATER, generation=9)
    assert after["conditions"][0]["reason"] == "ImagePullBackOff"
    assert after["conditions"][0]["observedGeneration"] == 9
    assert after["conditions"][0]["lastTransitionTime"] == "2026-03-01T12:00:00Z"


def test_a_conditions_time_moves_with_its_status() -> None:
    before = status(condition(Status.TRUE))
    for changed in (Status.FALSE, Status.UNKNOWN):
        after = status(condition(changed), previous=before, now=LATER)
        assert after["conditions"][0]["lastTransitionTime"] == "2026-03-01T12:05:00Z"


def test_a_conditions_time_is_its_own_whatever_the_order() -> None:
    before = status(condition(type_="Suspended"), now=NOON)
    after = status(condition(type_="Available"), condition(type_="Suspended"), previous=before, now=LATER)
    times = [one["lastTransitionTime"] for one in after["conditions"]]
    assert times == ["2026-03-01T12:05:00Z", "2026-03-01T12:00:00Z"]


def test_fields_that_a_kind_does_not_have_are_left_out_by_their_paths() -> None:
    status = {"queue": {"ready": 1, "failed": 2}, "conditions": [{"type": "Available"}], "replicas": 3}
    fields = ["status.queue.failed: X", 'status.conditions[type="Available"].foo: X', "status.other.a: X"]
    assert leave_out({"status": status}, fields) == {"status": {"queue": {"ready": 1}, "replicas": 3}}
    assert status["queue"] == {"ready": 1, "failed": 2}


def test_a_status_that_somebody_overwrote_is_written_anew() -> None:
    overwritten: Object = {"conditions": [{"type": "Available", "status": "True"}], "replicas": 99, "mine": 1}
    told = status(condition(), previous=overwritten)
    assert told["replicas"] == 2
    assert "mine" not in told
    assert told["conditions"][0]["lastTransitionTime"] == "2026-03-01T12:00:00Z"


DEPLOYMENTS = st.none() | st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries({"name": st.just("pool")}, optional={"generation": st.just(2)}),
    },
    optional={
        "status": st.fixed_dictionaries(
            {},
            optional={
                "observedGeneration": st.integers(1, 2),
                "replicas": st.integers(0, 3),
                "readyReplicas": st.integers(0, 3),
                "updatedReplicas": st.none() | st.integers(0, 3),
                "availableReplicas": st.integers(0, 3),
                "conditions": st.none() | st.just([{"type": "Available", "status": "True"}]),
            },
        )
    },
)
PODS = st.lists(
    st.sampled_from(
        [
            build_pod("a"),
            build_pod("b", ready=True),
            build_pod("c", state=waiting("ImagePullBackOff")),
            build_pod("d", deletion_timestamp="2026-03-01T12:00:00Z"),
            {"metadata": {"name": "e"}},
        ]
    ),
    max_size=3,
)
FACTS = st.fixed_dictionaries(
    {
        "deployment": DEPLOYMENTS,
        "pods": PODS,
        "problem": st.none(),
        "database": st.sampled_from(
            [DatabaseState(), DatabaseState(reachable=True), DatabaseState(reachable=False, error="Away")]
        ),
        "model": st.sampled_from(ModelState),
    }
)


@given(FACTS, st.integers(0, 3), st.booleans(), st.none() | st.just(COUNTS))
def test_whatever_is_known_the_status_is_whole_and_written_once(
    facts: Object, replicas: int, suspend: bool, counts: Counts | None
) -> None:
    pool = build_pool(replicas=replicas, suspend=suspend)
    said = derive_conditions(pool, **facts, now=NOON)
    first = status(*said, deployment=facts["deployment"], counts=counts)
    assert None not in list(values(first))
    assert status(*said, deployment=facts["deployment"], counts=counts, previous=first, now=LATER) == first


@given(FACTS, st.integers(0, 3))
def test_no_message_names_a_pod_and_the_order_of_pods_changes_nothing(facts: Object, replicas: int) -> None:
    pool = build_pool(replicas=replicas)
    renamed = [
        {**pod, "metadata": {**pod["metadata"], "name": f"pool-x{number}"}}
        for number, pod in enumerate(reversed(facts["pods"]))
    ]
    assert derive_conditions(pool, **facts, now=NOON) == derive_conditions(
        pool, **{**facts, "pods": renamed}, now=NOON
    )


def values(value: Any) -> Any:
    """Yield every value within a value that is no list or map."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        yield value
    else:
        for each in inner:
            yield from values(each)
