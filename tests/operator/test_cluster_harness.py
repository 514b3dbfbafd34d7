"""The harness itself: a real control plane in seconds, which can be hurt, watched and ended whole."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import psutil
import pytest

from support.cluster import build
from support.cluster.api import Api
from support.cluster.binaries import Binaries, prepare
from support.cluster.control_plane import ADMIN, ControlPlane
from support.cluster.errors import ApiError, ClusterUnavailable
from support.cluster.fixtures import create_namespace
from support.cluster.kubectl import Kubectl
from support.races import Call, wait_until

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"key": "value"}}


@pytest.fixture
def own_plane(cluster_binaries: Binaries, tmp_path: Path) -> ControlPlane:
    """Return a control plane of the test's own, not started."""
    return ControlPlane(cluster_binaries, tmp_path)


def test_every_test_has_a_namespace_of_its_own(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(CONFIG_MAP)
    assert kubectl("get", "configmap", "one", "-o", "jsonpath={.data.key}").out == "value"
    assert kubectl("config", "view", "-o", "jsonpath={.contexts[*].name}").out == "docgrid-tests"
    refused = kubectl.attempt("get", "configmap", "two")
    assert (refused.code, refused.out) == (1, "")
    assert 'configmaps "two" not found' in refused.err


def test_the_controllers_work(kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "sleepers", "--image=none", "--replicas=2")
    wait_until(lambda: len(kubectl("get", "pods", "-o", "name").out.split()) == 2)
    kubectl("delete", "deployment", "sleepers")
    wait_until(lambda: kubectl("get", "replicasets,pods", "-o", "name").out == "")


def test_a_service_account_may_do_what_its_roles_say_and_no_more(
    control_plane: ControlPlane, kubectl: Kubectl, namespace: str
) -> None:
    kubectl("create", "serviceaccount", "reader")
    kubectl("create", "role", "reader", "--verb=get,list", "--resource=configmaps")
    kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace}:reader")
    kubectl.apply(CONFIG_MAP)
    reader = Kubectl(kubectl.program, control_plane.kubeconfig_for("reader", namespace), namespace)
    assert reader("get", "configmap", "one", "-o", "name").out == "configmap/one\n"
    assert "Forbidden" in reader.attempt("delete", "configmap", "one").err
    assert "Forbidden" in reader.attempt("get", "configmaps", "--namespace=default").err


def test_the_audit_log_tells_who_wrote_what_even_if_it_changed_nothing(
    control_plane: ControlPlane, kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(CONFIG_MAP)
    mark = control_plane.audit.mark()
    kubectl("get", "configmap", "one")
    assert control_plane.audit_writes(ADMIN, since=mark) == []
    kubectl("patch", "configmap", "one", "--type=merge", '--patch={"data": {"key": "value"}}')
    [write] = control_plane.audit_writes(ADMIN, since=mark)
    assert (write.verb, write.resource, write.namespace, write.name) == (
        "patch",
        "configmaps",
        namespace,
        "one",
    )
    kubectl("delete", "configmap", "one", "--wait=false")
    assert [write.verb for write in control_plane.audit_writes(ADMIN, since=mark)] == ["patch", "delete"]
    assert control_plane.audit_writes("nobody", since=mark) == []


def test_an_apiserver_that_was_away_is_back_on_its_port_with_all_it_knew(own_plane: ControlPlane) -> None:
    with running(own_plane) as api:
        create_namespace(api, "kept")
        own_plane.pause_apiserver()
        waiting = Call(lambda: api.get("/api/v1/namespaces/kept"))
        assert waiting.is_running()
        own_plane.resume_apiserver()
        assert waiting.result()["metadata"]["name"] == "kept"
        own_plane.stop_apiserver()
        assert refusal(lambda: api.get("/api/v1/namespaces/kept")) == 0
        own_plane.start_apiserver()
        assert api.get("/api/v1/namespaces/kept")["status"]["phase"] == "Active"


def test_a_watch_that_missed_an_outage_is_told_to_list_again(own_plane: ControlPlane) -> None:
    with running(own_plane) as api:
        old = api.get("/api/v1/namespaces")["metadata"]["resourceVersion"]
        create_namespace(api, "missed")
        own_plane.compact_etcd()
        own_plane.stop_apiserver()
        own_plane.start_apiserver()
        events = iter(api.watch("/api/v1/namespaces", seconds=5, resource_version=old))
        kind, status = next(events)
        assert (kind, status["code"]) == ("ERROR", HTTPStatus.GONE)


def test_a_watch_can_be_stopped_by_another_thread(control_plane: ControlPlane, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    version = control_plane.api.get(path)["metadata"]["resourceVersion"]
    watch = control_plane.api.watch(path, seconds=60, resource_version=version)
    reading = Call(lambda: list(watch))
    watch.stop()
    assert isinstance(reading.error(), ApiError)


def test_nothing_runs_after_the_stop(own_plane: ControlPlane) -> None:
    with running(own_plane):
        pids = own_plane.pids
        assert len([pid for pid in pids if psutil.pid_exists(pid)]) == 4
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_a_control_plane_that_can_not_start_leaves_nothing_and_says_what_failed(
    cluster_binaries: Binaries, tmp_path: Path
) -> None:
    broken = ControlPlane(replace(cluster_binaries, etcd=Path("/bin/false")), tmp_path)
    with pytest.raises(ClusterUnavailable, match="etcd ended at once"):
        broken.start()
    assert broken.pids == []


def test_without_go_the_reason_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterUnavailable, match=r"no Go to build them with \(install Go 1.26 or newer"):
        prepare(print, {"DOCGRID_CACHE": str(tmp_path / "cache")})


def test_programs_of_the_usual_variable_are_preferred(cluster_binaries: Binaries, tmp_path: Path) -> None:
    for name in (*build.CONTROL_PLANE, "etcd"):
        program = tmp_path / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    assert prepare(print, {**os.environ, "KUBEBUILDER_ASSETS": str(tmp_path)}).etcd == tmp_path / "etcd"


@contextlib.contextmanager
def running(plane: ControlPlane) -> Iterator[Api]:
    """Run a control plane; yield its admin's client."""
    plane.start()
    try:
        yield plane.api
    finally:
        plane.stop()


def refusal(call: Callable[[], object]) -> int:
    """Return the HTTP status with which the apiserver refuses a call; 0 if it does not answer."""
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value.status
