"""The database is away, hangs, refuses: pools are told and still reconciled, and nothing of its address is shown."""

from collections.abc import Iterator

import pytest
from sqlalchemy.engine import URL, make_url

from docgrid_core.migrations import migrate
from docgrid_core.settings import DatabaseSettings
from support.operator_site import OperatorProcess, OperatorSite
from support.proxy import Proxy
from support.races import wait_until

AT_ONCE = 20.0
"""Seconds within which the operator has found the database again, on a busy machine."""
PASSWORD = "a-password-to-be-seen-nowhere"


@pytest.fixture
def url(site: OperatorSite) -> URL:
    """Return the database's address."""
    return make_url(site.database.url.get_secret_value())


@pytest.fixture
def line(url: URL) -> Iterator[Proxy]:
    """Yield the network between the operator and the database."""
    with Proxy((str(url.host), int(url.port or 5432))) as proxy:
        yield proxy


def address(url: URL, line: Proxy) -> str:
    """Return the database's address at the other end of the line."""
    return url.set(host="127.0.0.1", port=line.port).render_as_string(hide_password=False)


def everything_shown(site: OperatorSite, operator: OperatorProcess) -> str:
    """Return all that the operator has said to anybody."""
    return operator.output() + site.kubectl("get", "indexingworkers,events", "-o", "yaml").out


def has_event(site: OperatorSite, reason: str) -> bool:
    return f"{reason}\n" in site.kubectl("get", "events", "-o", "custom-columns=REASON:.reason").out


def test_without_the_database_pools_get_their_children_and_a_condition_that_heals(
    site: OperatorSite, url: URL, line: Proxy
) -> None:
    line.refuse()
    operator = site.start_ready(database_url=address(url, line))
    site.apply_pool(replicas=2)
    wait_until(site.is_reconciled)
    condition = site.wait_for_condition("DatabaseReachable", "False", "DatabaseUnreachable")
    assert "the operator can not use the database" in condition["message"]
    assert site.condition("ModelReady")["status"] == "Unknown"
    site.kubectl("delete", "deployment", "pool", "--wait=true")
    wait_until(lambda: site.get("deployment") is not None)
    assert operator.is_live
    assert operator.probe("/readyz") == ""
    line.serve()
    wait_until(lambda: site.condition("DatabaseReachable")["status"] == "True", limit=AT_ONCE)
    wait_until(lambda: site.condition("ModelReady")["status"] == "True", limit=AT_ONCE)


def test_a_database_that_is_lost_is_told_in_condition_and_event_and_found_again(
    site: OperatorSite, url: URL, line: Proxy
) -> None:
    operator = site.start_ready(database_url=address(url, line))
    site.apply_pool(replicas=1)
    site.wait_for_condition("DatabaseReachable", "True", "Connected")
    before = len(operator.lines())
    line.refuse()
    site.wait_for_condition("DatabaseReachable", "False", "DatabaseUnreachable")
    wait_until(lambda: has_event(site, "DatabaseUnreachable"))
    assert operator.is_live
    site.apply_pool("another", replicas=0)
    wait_until(lambda: site.is_reconciled("another"))
    line.serve()
    wait_until(lambda: site.condition("DatabaseReachable")["status"] == "True", limit=AT_ONCE)
    assert len(operator.lines()) - before < 20, "each loop says once that it fails and once that it works"


def test_a_restart_of_the_database_is_not_worth_a_condition(
    site: OperatorSite, url: URL, line: Proxy
) -> None:
    operator = site.start_ready(database_url=address(url, line))
    site.apply_pool(replicas=0)
    site.wait_for_condition("DatabaseReachable", "True", "Connected")
    line.cut()
    operator.wait_for_rounds("maintenance", count=4)
    assert not has_event(site, "DatabaseUnreachable")
    assert site.condition("DatabaseReachable")["status"] == "True"


def test_the_password_of_the_database_is_shown_nowhere(site: OperatorSite, url: URL, line: Proxy) -> None:
    # A role that the server does not know, and after that no server: both ways to fail.
    wrong = address(url.set(username="nobody", password=PASSWORD), line)
    operator = site.start_ready(database_url=wrong)
    site.apply_pool(replicas=0)
    site.wait_for_condition("DatabaseReachable", "False", "DatabaseUnreachable")
    line.refuse()
    operator.wait_for_rounds("maintenance")
    wait_until(lambda: has_event(site, "DatabaseUnreachable"))
    assert PASSWORD not in everything_shown(site, operator)
    assert f":{line.port}/" not in everything_shown(site, operator)


def test_a_schema_that_is_not_there_yet_is_waited_for(
    site: OperatorSite, empty_database_settings: DatabaseSettings
) -> None:
    operator = site.start_ready(database_url=empty_database_settings.url.get_secret_value())
    site.apply_pool(replicas=0)
    site.wait_for_condition("DatabaseReachable", "False", "DatabaseUnreachable")
    assert operator.is_live
    migrate(empty_database_settings)
    site.wait_for_condition("DatabaseReachable", "True", "Connected")
    site.wait_for_condition("ModelReady", "False", "ModelNotFound")
