"""Operators come and go: two at once, one killed at work, one told to end whatever it waits for."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from docgrid_core.database import Database
from docgrid_core.testing import factories
from docgrid_core.testing.invariants import violations
from support import tables
from support.apiserver_proxy import ApiServerProxy, Torn
from support.logged_process import LoggedProcess
from support.operator_site import OperatorSite
from support.proxy import Proxy
from support.races import wait_until
from support.worker_process import get

END = 20.0
"""Seconds within which an operator has ended; the kubelet gives it 30."""
LOOPS = ("resync", "maintenance", "liveness", "status", "views", "actions", "events")


def test_two_operators_at_once_agree_on_everything(site: OperatorSite) -> None:
    both = [site.start_ready(), site.start_ready()]
    for number in range(4):
        site.apply_pool(f"pool-{number}", replicas=number, disruptionBudget={"maxUnavailable": 1})
    for number in range(4):
        site.wait_for_condition("ModelReady", "True", "ModelActive", f"pool-{number}")
        wait_until(lambda name=f"pool-{number}": site.is_reconciled(name))  # type: ignore[misc]
    for operator in both:
        operator.wait_for_rounds("status")
    mark = site.control_plane.audit.mark()
    for operator in both:
        operator.wait_for_rounds(*LOOPS)
    assert site.writes(since=mark) == []
    generations = [site.get("deployment", f"pool-{number}") for number in range(4)]
    assert [deployment and deployment["metadata"]["generation"] for deployment in generations] == [1] * 4


def test_two_operators_recover_each_job_once(site: OperatorSite, db: Database) -> None:
    worker = factories.register_worker(db)
    jobs = [factories.run(db, worker=worker).document.job_id for _ in range(20)]
    both = [site.start_ready(), site.start_ready()]
    tables.change(db, "UPDATE worker_nodes SET dead_threshold = interval '1 second'")
    tables.silence(db, worker.id)
    wait_until(lambda: all(tables.job(db, job).status == "PENDING" for job in jobs))
    for operator in both:
        operator.wait_for_rounds("maintenance")
    assert [tables.job(db, job).retry_count for job in jobs] == [1] * 20
    assert violations(db) == []


def test_an_operator_killed_at_work_leaves_nothing_half_done_for_good(site: OperatorSite) -> None:
    names = [f"pool-{number}" for number in range(20)]
    first = site.start_ready()
    mark = site.control_plane.audit.mark()
    for name in names:
        site.apply_pool(name, replicas=0)
        if len(site.writes(since=mark)) > 15:
            first.kill()
    assert first.exit_code == -9
    for name in names[10:]:
        site.kubectl("annotate", "indexingworker", name, "docgrid.dev/restart=again")
    site.start_ready()
    wait_until(lambda: all(site.is_reconciled(name) for name in names))


def test_an_operator_that_takes_over_writes_nothing_where_nothing_has_changed(site: OperatorSite) -> None:
    first = site.start_ready()
    site.apply_pool(replicas=0)
    site.wait_for_condition("ModelReady", "True", "ModelActive")
    wait_until(site.is_reconciled)
    first.wait_for_rounds(*LOOPS)
    mark = first.wait_until_quiet(site)
    first.kill()
    site.start_ready().wait_for_rounds(*LOOPS)
    assert site.writes(since=mark) == []


def test_an_operator_whose_answers_are_lost_writes_the_same_again(
    site: OperatorSite, apiserver: ApiServerProxy
) -> None:
    site.start_ready()
    apiserver.inject(lambda request: request.is_write, Torn())
    site.apply_pool(replicas=0, disruptionBudget={"minAvailable": 1})
    wait_until(lambda: site.get("poddisruptionbudget") is not None)
    apiserver.heal()
    wait_until(site.is_reconciled)
    for kind in ("deployment", "poddisruptionbudget"):
        found = site.get(kind)
        assert found is not None
        assert found["metadata"]["generation"] == 1


@pytest.mark.parametrize("harm", [Proxy.refuse, Proxy.stall], ids=["gone", "hangs"])
@pytest.mark.parametrize("when", ["at its start", "later"])
def test_an_operator_without_the_apiserver_ends_when_told(
    site: OperatorSite, network: Proxy, harm: Callable[[Proxy], None], when: str
) -> None:
    if when == "later":
        operator = site.start_ready()
        site.apply_pool()
        harm(network)
        site.apply_pool("another")
        time.sleep(6)  # until every loop has met it
    else:
        harm(network)
        operator = site.start()
        wait_until(lambda: is_answering(operator.port))
        assert "waits" in operator.probe("/readyz")
        assert operator.is_live
    operator.drain()
    assert operator.wait(END) == 0


def is_answering(port: int) -> bool:
    try:
        get(port, "/livez")
    except OSError:
        return False
    return True


@pytest.mark.parametrize("harm", [Proxy.refuse, Proxy.stall], ids=["gone", "hangs"])
def test_an_operator_without_the_database_ends_when_told(
    site: OperatorSite, harm: Callable[[Proxy], None]
) -> None:
    url = make_url(site.database.url.get_secret_value())
    with Proxy((str(url.host), int(url.port or 5432))) as line:
        reached = url.set(host="127.0.0.1", port=line.port)
        operator = site.start_ready(database_url=reached.render_as_string(hide_password=False))
        operator.wait_for_rounds("status")
        harm(line)
        site.apply_pool()
        wait_until(site.is_reconciled)
        operator.drain()
        assert operator.wait(END) == 0


def test_an_operator_that_works_ends_at_once(site: OperatorSite) -> None:
    operator = site.start_ready()
    for number in range(5):
        site.apply_pool(f"pool-{number}")
    operator.drain()
    assert operator.wait(END) == 0
    assert operator.lines()[-1]["event"] == "the operator has stopped", operator.output()
    assert operator.lines("unexpected error") == []


def test_each_bad_setting_is_named_on_a_line_of_its_own(site: OperatorSite) -> None:
    operator = site.start(operator_views_limit="-1", operator_reconcilers="many", operator_worker_image="")
    assert operator.wait() == 2
    lines = operator.output().splitlines()
    names = {"DOCGRID_OPERATOR_VIEWS_LIMIT", "DOCGRID_OPERATOR_RECONCILERS", "DOCGRID_OPERATOR_WORKER_IMAGE"}
    assert len(lines) == 3
    assert {name for name in names for line in lines if name in line} == names


@pytest.mark.parametrize("content", [None, "", "{}", "clusters: [", "current-context: nowhere\n"])
def test_without_a_usable_kubeconfig_the_reason_is_one_line(tmp_path: Path, content: str | None) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    if content is not None:
        kubeconfig.write_text(content)
    environment = {
        "KUBECONFIG": str(kubeconfig),
        "HOME": str(tmp_path),
        "DOCGRID_DATABASE_URL": "postgresql://localhost/docgrid",
        "DOCGRID_OPERATOR_NAMESPACE": "default",
        "DOCGRID_OPERATOR_WORKER_IMAGE": "docgrid:test",
    }
    operator = LoggedProcess("docgrid_operator", environment, log=tmp_path / "log")
    assert operator.wait() == 2
    (line,) = operator.output().splitlines()
    assert "KUBECONFIG" in line


def test_a_namespace_goes_without_the_operator(site: OperatorSite) -> None:
    operator = site.start_ready()
    site.apply_pool(replicas=0, disruptionBudget={"minAvailable": 1})
    wait_until(site.is_reconciled)
    operator.kill()
    site.kubectl("delete", "namespace", site.namespace, "--wait=true")


def test_a_pool_that_is_being_deleted_in_the_foreground_gets_no_new_children(site: OperatorSite) -> None:
    operator = site.start_ready()
    site.apply_pool(replicas=0)
    wait_until(site.is_reconciled)
    hold = '{"metadata": {"finalizers": ["tests.docgrid.dev/hold"]}}'
    site.kubectl("patch", "indexingworker", "pool", "--type=merge", "-p", hold)
    site.kubectl("delete", "indexingworker", "pool", "--cascade=foreground", "--wait=false")
    wait_until(lambda: site.get("deployment") is None)
    mark = site.control_plane.audit.mark()
    operator.wait_for_rounds("resync")
    assert site.get("deployment") is None
    assert site.writes(since=mark) == []
    site.kubectl(
        "patch", "indexingworker", "pool", "--type=merge", "-p", '{"metadata": {"finalizers": null}}'
    )
    wait_until(lambda: site.get("indexingworker") is None)
