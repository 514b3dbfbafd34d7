"""The apiserver refuses, hangs, throttles, fails, breaks off: the operator waits, goes on, and has lost nothing."""

import itertools
import time
from collections.abc import Callable
from http import HTTPStatus

import pytest

from support.apiserver_proxy import ApiServerProxy, Refusal, Request, Says, Silenced, Torn
from support.operator_site import OperatorProcess, OperatorSite
from support.proxy import Proxy
from support.races import wait_until

AT_ONCE = 20.0
"""Seconds within which things are as they should be once the apiserver is back, on a busy machine."""


def stay_live(operator: OperatorProcess, seconds: float) -> None:
    """Let time pass, and see that the liveness probe is green all the while."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert operator.probe("/livez") == ""
        time.sleep(0.5)


@pytest.mark.timeout(180)
def test_a_minute_without_the_apiserver_is_made_up_for_within_seconds(
    site: OperatorSite, network: Proxy
) -> None:
    # At the default interval of the resync: nothing may have to wait for the next one.
    operator = site.start_ready(operator_resync_interval="1m")
    for name in ("changed", "robbed", "deleted"):
        site.apply_pool(name)
        wait_until(lambda name=name: site.is_reconciled(name))  # type: ignore[misc]
    before = len(operator.lines())
    network.refuse()
    site.kubectl("scale", "indexingworker", "changed", "--replicas=3")
    site.kubectl("delete", "deployment,serviceaccount", "robbed", "--wait=true")
    site.kubectl("delete", "indexingworker", "deleted", "--wait=true")
    site.apply_pool("made-meanwhile")
    stay_live(operator, 60)
    during = operator.lines()[before:]
    network.serve()
    site.apply_pool("made-afterwards")

    def is_whole() -> bool:
        return (
            all(site.is_reconciled(name) for name in ("robbed", "made-meanwhile", "made-afterwards"))
            and (site.get("deployment", "changed") or {})["spec"]["replicas"] == 3
            and site.get("deployment", "deleted") is None
        )

    wait_until(is_whole, limit=AT_ONCE)
    assert operator.exit_code is None
    assert len(during) < 30, "one line for each loop and pool that fails, not one for each try"


def test_an_apiserver_that_hangs_is_waited_for(site: OperatorSite, network: Proxy) -> None:
    operator = site.start_ready()
    site.apply_pool("robbed")
    wait_until(lambda: site.is_reconciled("robbed"))
    before = len(operator.lines())
    network.stall()
    site.kubectl("delete", "deployment", "robbed", "--wait=true")
    site.apply_pool("made-meanwhile")
    stay_live(operator, 30)  # longer than any call may take
    assert len(operator.lines()) - before < 30
    network.flow()
    wait_until(
        lambda: site.is_reconciled("robbed") and site.is_reconciled("made-meanwhile"), limit=2 * AT_ONCE
    )


def test_connections_that_are_cut_again_and_again_lose_nothing(site: OperatorSite, network: Proxy) -> None:
    operator = site.start_ready()
    for number in range(8):
        network.cut()
        site.apply_pool(f"pool-{number}", replicas=0)
    wait_until(lambda: all(site.is_reconciled(f"pool-{number}") for number in range(8)))
    assert operator.is_live


def test_an_apiserver_that_asks_for_rest_gets_it(site: OperatorSite, apiserver: ApiServerProxy) -> None:
    site.start_ready()
    rest = 3
    apiserver.inject(
        lambda request: request.is_write, Refusal(HTTPStatus.TOO_MANY_REQUESTS, {"Retry-After": str(rest)})
    )
    site.apply_pool(replicas=0)
    wait_until(lambda: len(apiserver.faulty()) >= 4)
    apiserver.heal()
    # The first thing a pool needs is its ServiceAccount, and nobody else's is asked for here.
    at = [request.at for request in apiserver.faulty() if "/serviceaccounts/" in request.path]
    assert len(at) >= 2
    assert all(later - earlier >= rest for earlier, later in itertools.pairwise(at))
    wait_until(lambda: site.is_reconciled("pool"))


def test_a_watch_that_is_throttled_is_made_as_late_as_asked_and_goes_on(
    site: OperatorSite, apiserver: ApiServerProxy
) -> None:
    operator = site.start_ready(operator_resync_interval="1m")
    rest = 4
    apiserver.inject(
        lambda request: request.is_watch, Refusal(HTTPStatus.TOO_MANY_REQUESTS, {"Retry-After": str(rest)})
    )
    wait_until(lambda: any(count >= 2 for count in times_by_path(apiserver).values()))
    apiserver.heal()
    for path in times_by_path(apiserver):
        at = [request.at for request in apiserver.faulty() if request.path == path]
        assert all(later - earlier >= rest for earlier, later in itertools.pairwise(at)), path
    site.apply_pool(replicas=0)
    wait_until(lambda: site.is_reconciled("pool"), limit=AT_ONCE)
    assert operator.is_live


def times_by_path(apiserver: ApiServerProxy) -> dict[str, int]:
    """Count the faulty requests of each path."""
    paths = [request.path for request in apiserver.faulty()]
    return {path: paths.count(path) for path in paths}


@pytest.mark.parametrize("status", [HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.SERVICE_UNAVAILABLE])
def test_an_apiserver_that_fails_is_asked_again(
    site: OperatorSite, apiserver: ApiServerProxy, status: HTTPStatus
) -> None:
    operator = site.start_ready()
    apiserver.inject(lambda _: True, Refusal(status))
    site.apply_pool(replicas=0)
    stay_live(operator, 5)
    apiserver.heal()
    wait_until(lambda: site.is_reconciled("pool"), limit=AT_ONCE)


@pytest.mark.parametrize("question", ["writes", "lists", "watches"])
def test_an_answer_that_breaks_off_is_asked_for_again(
    site: OperatorSite, apiserver: ApiServerProxy, question: str
) -> None:
    chosen: dict[str, Callable[[Request], bool]] = {
        "writes": lambda request: request.is_write,
        "lists": lambda request: not request.is_write and not request.is_watch,
        "watches": lambda request: request.is_watch,
    }
    operator = site.start_ready()
    apiserver.inject(chosen[question], Torn())
    site.apply_pool(replicas=0)
    wait_until(lambda: len(apiserver.faulty()) >= 3)
    site.kubectl("annotate", "indexingworker", "pool", "an=event")
    stay_live(operator, 3)
    apiserver.heal()
    wait_until(lambda: site.is_reconciled("pool"), limit=AT_ONCE)


def test_a_watch_that_is_told_of_an_error_goes_on(site: OperatorSite, apiserver: ApiServerProxy) -> None:
    operator = site.start_ready(operator_resync_interval="1m")
    status = b'{"kind": "Status", "status": "Failure", "reason": "InternalError", "code": 500}'
    apiserver.inject(
        lambda request: request.is_watch and request.path.endswith("/indexingworkers"),
        Says(b'{"type": "ERROR", "object": ' + status + b"}"),
    )
    operator.wait_for_line("the watches begin anew")
    apiserver.heal()
    site.apply_pool(replicas=0)
    wait_until(lambda: site.is_reconciled("pool"), limit=AT_ONCE)
    assert operator.is_live
    operator.drain()
    assert operator.wait() == 0


def test_a_watch_that_has_gone_silent_turns_the_probe_red_and_nothing_else(
    site: OperatorSite, apiserver: ApiServerProxy
) -> None:
    operator = site.start_ready()
    site.apply_pool(replicas=0)
    wait_until(lambda: site.is_reconciled("pool"))
    apiserver.inject(
        lambda request: request.is_watch and request.path.endswith("/indexingworkers"), Silenced()
    )
    # The lists still bring it: the pool is served, later.
    site.kubectl("scale", "indexingworker", "pool", "--replicas=2")
    wait_until(lambda: (site.get("deployment") or {})["spec"]["replicas"] == 2)

    wait_until(lambda: "the watch of indexingworkers is silent" in operator.probe("/livez"))
    assert operator.probe("/readyz") == ""
    apiserver.heal()
    wait_until(lambda: operator.is_live)
