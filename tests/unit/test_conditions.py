"""What a pool's conditions say, guard by guard."""

from typing import Any

import pytest

from docgrid_operator.conditions import (
    Condition,
    DatabaseState,
    ModelState,
    Problem,
    Status,
    derive_available,
    derive_conditions,
    derive_database_reachable,
    derive_model_ready,
    derive_progressing,
    derive_suspended,
)
from docgrid_operator.kinds import Object
from support.pods import NOW, build_pod, terminated, waiting
from support.pools import build_pool

T, F, U = Status.TRUE, Status.FALSE, Status.UNKNOWN
REACHED = DatabaseState(reachable=True)
AWAY = DatabaseState(reachable=False, error="DatabaseUnavailable")
TAKEN = Problem("NameTaken", "a Deployment named pool is there")
NO_IMAGE = build_pod(state=waiting("ImagePullBackOff"))
ENDING = build_pod(deletion_timestamp="2026-03-01T12:00:00Z")
QUOTA = {
    "type": "ReplicaFailure",
    "status": "True",
    "reason": "FailedCreate",
    "message": 'pods "pool-6d4f9c-x7k2p" is forbidden: exceeded quota',
}


def build_deployment(
    *, spec: Object | None = None, conditions: list[Object] | None = None, **status: Any
) -> Object:
    """Return a Deployment whose controller has seen its newest spec; counts that are not given are `replicas`."""
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    told = {"observedGeneration": 3, **dict.fromkeys(counts, status.pop("replicas", 0)), **status}
    return {
        "metadata": {"name": "pool", "generation": 3},
        "spec": spec or {},
        "status": {**told, "conditions": conditions or []},
    }


AVAILABLE = {"type": "Available", "status": "True"}
UNAVAILABLE = {"type": "Available", "status": "False"}
LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}


@pytest.mark.parametrize(
    ("spec", "deployment", "pods", "problem", "expected"),
    [
        ({"suspend": True}, build_deployment(replicas=2), [], None, (F, "Suspended", "spec.suspend is true")),
        ({"replicas": 0}, build_deployment(), [], None, (F, "ScaledToZero", "spec.replicas is 0")),
        ({"replicas": 2}, build_deployment(replicas=2), [], None, (T, "WorkersReady", "every worker")),
        ({"replicas": 2}, build_deployment(replicas=3), [NO_IMAGE], TAKEN, (T, "WorkersReady", "every")),
        ({}, None, [], TAKEN, (F, "NameTaken", TAKEN.message)),
        ({}, None, [NO_IMAGE], TAKEN, (F, "ImagePullBackOff", "can not be pulled")),
        ({}, build_deployment(conditions=[QUOTA]), [], None, (F, "FailedCreate", "exceeded quota")),
        (
            {"replicas": 4},
            build_deployment(replicas=4, readyReplicas=3, conditions=[AVAILABLE]),
            [NO_IMAGE],
            None,
            (T, "ImagePullBackOff", "can not be pulled"),
        ),
        (
            {"replicas": 4},
            build_deployment(replicas=4, readyReplicas=3, conditions=[AVAILABLE]),
            [],
            None,
            (T, "SomeWorkersReady", "not all"),
        ),
        (
            {"replicas": 2},
            build_deployment(replicas=2, readyReplicas=1, conditions=[UNAVAILABLE]),
            [],
            None,
            (F, "WorkersNotReady", "not enough workers are ready"),
        ),
        # A Deployment of no replicas counts as available: that was before the pool was scaled up.
        ({}, build_deployment(conditions=[AVAILABLE]), [], None, (F, "WorkersNotReady", "not enough")),
        ({}, None, [], None, (F, "WorkersNotReady", "not enough workers")),
    ],
)
def test_available_says_whether_workers_are_ready_and_what_keeps_them_from_it(
    spec: Object,
    deployment: Object | None,
    pods: list[Object],
    problem: Problem | None,
    expected: tuple[Status, str, str],
) -> None:
    check(derive_available(build_pool(**spec), deployment, pods, problem, now=NOW), "Available", expected)


@pytest.mark.parametrize(
    ("replicas", "deployment", "pods", "problem", "expected"),
    [
        (1, build_deployment(replicas=1), [], TAKEN, (F, "NameTaken", TAKEN.message)),
        (1, None, [], None, (T, "Creating", "being created")),
        (1, {"metadata": {"generation": 1}}, [], None, (T, "Updating", "newest spec")),
        (1, build_deployment(replicas=1, observedGeneration=2), [], None, (T, "Updating", "newest spec")),
        (2, build_deployment(replicas=2, updatedReplicas=1), [], None, (T, "RollingOut", "taking over")),
        (2, build_deployment(replicas=3, updatedReplicas=2), [], None, (T, "RollingOut", "taking over")),
        (
            2,
            build_deployment(replicas=3, updatedReplicas=1),
            [NO_IMAGE],
            None,
            (T, "RollingOut", "taking over: the image docgrid:2 can not be pulled"),
        ),
        (
            2,
            build_deployment(conditions=[QUOTA]),
            [],
            None,
            (T, "RollingOut", "taking over: a pod is forbidden: exceeded quota"),
        ),
        (
            1,
            build_deployment(replicas=2, updatedReplicas=1, conditions=[LATE]),
            [NO_IMAGE],
            None,
            (F, "ProgressDeadlineExceeded", "ten minutes: the image docgrid:2 can not be pulled"),
        ),
        (
            1,
            build_deployment(replicas=1, availableReplicas=0, conditions=[LATE]),
            [],
            None,
            (F, "ProgressDeadlineExceeded", "ten minutes"),
        ),
        (0, build_deployment(conditions=[LATE]), [], None, (F, "RolledOut", "every worker")),
        (
            1,
            build_deployment(replicas=1, updatedReplicas=0, spec={"paused": True}),
            [],
            None,
            (F, "Paused", "kubectl rollout resume"),
        ),
        (1, build_deployment(replicas=1, spec={"paused": True}), [], None, (F, "RolledOut", "every worker")),
        (2, build_deployment(replicas=2, availableReplicas=1), [], None, (T, "Starting", "not ready yet")),
        (
            2,
            build_deployment(replicas=2, availableReplicas=1),
            [NO_IMAGE],
            None,
            (T, "Starting", "not ready yet: the image docgrid:2 can not be pulled"),
        ),
        (1, build_deployment(replicas=2), [], None, (T, "ScalingDown", "are ending")),
        (0, build_deployment(), [ENDING], None, (T, "ScalingDown", "are ending")),
        (2, build_deployment(replicas=2), [build_pod()], None, (F, "RolledOut", "every worker")),
        (0, build_deployment(), [], None, (F, "RolledOut", "every worker")),
    ],
)
def test_progressing_says_whether_the_pool_is_on_its_way_and_what_holds_it_up(
    replicas: int,
    deployment: Object | None,
    pods: list[Object],
    problem: Problem | None,
    expected: tuple[Status, str, str],
) -> None:
    pool = build_pool(replicas=replicas)
    check(derive_progressing(pool, deployment, pods, problem, now=NOW), "Progressing", expected)


def test_a_suspended_pool_is_on_its_way_until_its_last_worker_has_ended() -> None:
    pool = build_pool(replicas=2, suspend=True)
    said = [
        derive_progressing(pool, deployment, pods, None, now=NOW).status
        for deployment, pods in [
            (build_deployment(replicas=2), [build_pod()]),
            (build_deployment(), [ENDING]),
            (build_deployment(), []),
        ]
    ]
    assert said == [T, T, F]


@pytest.mark.parametrize(
    ("database", "expected"),
    [
        (DatabaseState(), (U, "NotAskedYet", "just started")),
        (REACHED, (T, "Connected", "reaches the database")),
        (AWAY, (F, "DatabaseUnreachable", "(DatabaseUnavailable): its log says more; it keeps trying")),
    ],
)
def test_database_reachable_says_what_the_operator_found(
    database: DatabaseState, expected: tuple[Status, str, str]
) -> None:
    check(derive_database_reachable(database), "DatabaseReachable", expected)


@pytest.mark.parametrize(
    ("database", "model", "expected"),
    [
        (DatabaseState(), ModelState.READY, (U, "NotAskedYet", "not been looked for")),
        (AWAY, ModelState.READY, (U, "DatabaseNotAsked", "could not be asked")),
        (REACHED, ModelState.UNKNOWN, (U, "NotAskedYet", "not been looked for")),
        (REACHED, ModelState.MISSING, (F, "ModelNotFound", "no embedding model e5 2: add it with `docgrid")),
        (REACHED, ModelState.NOT_SEARCHABLE, (F, "ModelNotActive", "`docgrid models activate`")),
        (REACHED, ModelState.READY, (T, "ModelActive", "model e5 2 is active")),
    ],
)
def test_model_ready_says_whether_the_pools_jobs_can_be_claimed(
    database: DatabaseState, model: ModelState, expected: tuple[Status, str, str]
) -> None:
    pool = build_pool(model={"name": "e5", "version": "2"})
    check(derive_model_ready(pool, database, model), "ModelReady", expected)


def test_a_model_without_a_version_is_named_by_its_name() -> None:
    said = derive_model_ready(build_pool(model={"name": "e5"}), REACHED, ModelState.MISSING).message
    assert "no embedding model e5: add it" in said


@pytest.mark.parametrize(
    ("suspend", "expected"),
    [(True, (T, "Suspended", "has no workers")), (False, (F, "NotSuspended", "runs"))],
)
def test_suspended_says_what_the_spec_says(suspend: bool, expected: tuple[Status, str, str]) -> None:
    check(derive_suspended(build_pool(suspend=suspend)), "Suspended", expected)


def test_all_conditions_are_there_in_their_order_whatever_is_known() -> None:
    said = derive_conditions(
        build_pool(),
        deployment=None,
        pods=[],
        problem=None,
        database=DatabaseState(),
        model=ModelState.UNKNOWN,
        now=NOW,
    )
    assert [condition.type for condition in said] == [
        "Available",
        "Progressing",
        "DatabaseReachable",
        "ModelReady",
        "Suspended",
    ]


CRASHING = build_pod(state=waiting("CrashLoopBackOff"), last_state=terminated(75, "Error"))


@pytest.mark.parametrize(
    ("model", "pods", "reason"),
    [
        (ModelState.MISSING, [], "ModelNotFound"),
        (ModelState.MISSING, [CRASHING], "ModelNotFound"),
        (ModelState.MISSING, [NO_IMAGE], "ImagePullBackOff"),
        (ModelState.NOT_SEARCHABLE, [CRASHING], "ModelNotActive"),
        (ModelState.READY, [CRASHING], "CrashLoopBackOff"),
        (ModelState.UNKNOWN, [], "WorkersNotReady"),
    ],
)
def test_a_missing_model_is_named_as_what_keeps_workers_from_being_ready(
    model: ModelState, pods: list[Object], reason: str
) -> None:
    available, *_ = derive_conditions(
        build_pool(), deployment=None, pods=pods, problem=None, database=REACHED, model=model, now=NOW
    )
    assert (available.status, available.reason) == (F, reason)


def check(condition: Condition, type_: str, expected: tuple[Status, str, str]) -> None:
    status, reason, fragment = expected
    assert (condition.type, condition.status, condition.reason) == (type_, status, reason)
    assert fragment in condition.message
