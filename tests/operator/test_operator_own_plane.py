"""What harms a control plane: its apiserver ends, its history is cut, our kinds are old or gone. On one of its own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from docgrid_core.settings import DatabaseSettings
from docgrid_operator.kinds import Object
from support.cluster.control_plane import ControlPlane
from support.cluster.fixtures import CRDS, create_namespace, install_crds
from support.operator_site import OperatorSite
from support.races import wait_until

AT_ONCE = 20.0
"""Seconds within which things are as they should be once the apiserver is back, on a busy machine."""
KINDS = ("crd/indexingworkers.docgrid.dev", "crd/indexingjobs.docgrid.dev")


@pytest.fixture
def bare_site(
    own_plane: ControlPlane, database_settings: DatabaseSettings, tmp_path: Path
) -> Iterator[OperatorSite]:
    """Yield a release on a control plane that does not know our kinds."""
    own_plane.kubectl()("delete", *KINDS, "--ignore-not-found", "--wait=true")
    namespace = f"test-{uuid4().hex[:12]}"
    create_namespace(own_plane.api, namespace)
    release = OperatorSite(own_plane, namespace, database_settings, folder=tmp_path)
    try:
        yield release
    finally:
        release.close()


@pytest.fixture
def own_site(bare_site: OperatorSite) -> OperatorSite:
    """Return a release on a control plane that the test may harm."""
    install_crds(bare_site.control_plane.kubectl())
    return bare_site


def test_an_apiserver_that_comes_back_without_its_history_has_told_everything(own_site: OperatorSite) -> None:
    plane = own_site.control_plane
    operator = own_site.start_ready(operator_resync_interval="1m")
    for name in ("kept", "robbed"):
        own_site.apply_pool(name, replicas=0)
        wait_until(lambda name=name: own_site.is_reconciled(name))  # type: ignore[misc]
    operator.freeze()  # its watches miss what comes, and go on from before it
    own_site.kubectl("delete", "deployment", "robbed", "--wait=true")
    own_site.kubectl("scale", "indexingworker", "kept", "--replicas=2")
    own_site.apply_pool("missed", replicas=0)
    plane.compact_etcd()
    plane.stop_apiserver()
    try:
        operator.thaw()
        operator.wait_for_line("a library reports")  # of a watch that does not get through
        assert operator.is_live
    finally:
        plane.start_apiserver()
    own_site.apply_pool("afterwards", replicas=0)

    def is_whole() -> bool:
        deployment = own_site.get("deployment", "kept") or {"spec": {}}
        return deployment["spec"].get("replicas") == 2 and all(
            own_site.is_reconciled(name) for name in ("robbed", "missed", "afterwards")
        )

    wait_until(is_whole, limit=AT_ONCE)
    # The watches live on, all of them: at this interval no list would bring it.
    own_site.kubectl("scale", "deployment", "kept", "--replicas=5")
    wait_until(lambda: (own_site.get("deployment", "kept") or {})["spec"]["replicas"] == 2, limit=AT_ONCE)
    assert operator.is_live


def test_without_our_kinds_the_operator_waits_says_so_and_goes_on(bare_site: OperatorSite) -> None:
    operator = bare_site.start()
    line = operator.wait_for_line("the operator waits")
    assert line["waits_for"] == "CustomResourceDefinition of indexingworkers, indexingjobs"
    assert "CustomResourceDefinition of indexingworkers" in operator.probe("/readyz")
    assert operator.is_live
    install_crds(bare_site.control_plane.kubectl())
    operator.wait_for_line("the operator works")
    bare_site.apply_pool(replicas=0)
    wait_until(bare_site.is_reconciled)
    assert operator.probe("/readyz") == ""
    assert len(operator.lines("the operator waits")) <= 2, "once for each thing it waits for"


def test_an_operator_that_waits_for_our_kinds_ends_when_told(bare_site: OperatorSite) -> None:
    operator = bare_site.start()
    operator.wait_for_line("the operator waits")
    operator.drain()
    assert operator.wait(10) == 0


def test_our_kinds_may_go_and_come_back(own_site: OperatorSite) -> None:
    operator = own_site.start_ready()
    own_site.apply_pool(replicas=0)
    wait_until(own_site.is_reconciled)
    own_site.kubectl("delete", *KINDS, "--wait=true")
    wait_until(lambda: "CustomResourceDefinition" in operator.probe("/readyz"))
    assert operator.is_live
    install_crds(own_site.control_plane.kubectl())
    own_site.apply_pool("again", replicas=0)
    wait_until(lambda: own_site.is_reconciled("again"))
    own_site.kubectl("scale", "indexingworker", "again", "--replicas=1")
    wait_until(lambda: (own_site.get("deployment", "again") or {})["spec"]["replicas"] == 1)
    assert operator.probe("/readyz") == ""


def older(document: Object) -> Object:
    """Return the definition of IndexingWorker as an older release might have had it: some fields unknown."""
    schema: Any = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for field in ("queue", "selector"):
        del schema["status"]["properties"][field]
    for field in ("parsing", "shutdownGracePeriod"):
        del schema["spec"]["properties"][field]
    del document["spec"]["versions"][0]["subresources"]["scale"]  # it needs the selector
    columns = document["spec"]["versions"][0]["additionalPrinterColumns"]
    columns[:] = [column for column in columns if ".queue" not in column["jsonPath"]]
    return document


def test_kinds_of_an_older_release_are_named_by_the_field_they_drop_and_written_no_more_than_once(
    own_site: OperatorSite,
) -> None:
    kubectl = own_site.kubectl
    path = next(CRDS.glob("*indexingworkers.yaml"))
    document = older(yaml.safe_load(path.read_text()))
    kubectl("apply", "--server-side", "-f", "-", input=json.dumps(document))
    kubectl("wait", "--for=condition=Established", KINDS[0])
    operator = own_site.start_ready()
    own_site.apply_pool(replicas=1)
    wait_until(own_site.is_reconciled)

    def warned() -> bool:
        query = ("get", "events", "-o", "jsonpath={range .items[*]}{.reason}: {.message}{'\\n'}{end}")
        return (
            "CustomResourceDefinitionOutdated: the installed CustomResourceDefinition drops status."
            in kubectl(*query).out
        )

    wait_until(warned)
    own_site.wait_for_condition("ModelReady", "True", "ModelActive")
    operator.wait_for_rounds("status", "views", "resync")
    mark = own_site.control_plane.audit.mark()
    operator.wait_for_rounds("resync", "status", "views")
    # The Event may count up once more: it is written every few seconds at most.
    assert [write for write in own_site.writes(since=mark) if write.resource != "events"] == []
    install_crds(own_site.control_plane.kubectl())
    own_site.kubectl("scale", "indexingworker", "pool", "--replicas=2")
    wait_until(lambda: "selector" in ((own_site.get("indexingworker") or {}).get("status") or {}))
