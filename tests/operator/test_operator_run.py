"""`make operator-run`: from a current kubeconfig to an indexed document, and nothing of it is left running."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import operator_run
from docgrid_cli.local.home import holder
from docgrid_cli.local.profile import Profile
from docgrid_cli.narrator import Narrator
from docgrid_core.errors import SettingsError
from support.cluster.kubectl import Kubectl
from support.cluster.stand_in_node import StandInNode
from support.layers import TESTS
from support.races import wait_until
from support.servers import scratch_folder

TOOL = TESTS.parent / "tools" / "operator_run.py"
STACK = Profile("postgresql://docgrid:secret@127.0.0.1:5432/docgrid", 5432, 9000, "key", "secret", 8000)
WRONG = "choose a cluster by KUBECONFIG, or run `make cluster-up` and say the lines that it prints"


@pytest.fixture
def environment(kubectl: Kubectl, tmp_path: Path) -> dict[str, str]:
    """Return that of a person who has said the lines of `cluster-up`, in the namespace of the test."""
    config = json.loads(kubectl.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = kubectl.namespace
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    own = {key: value for key, value in os.environ.items() if not key.startswith("DOCGRID_")}
    path = f"{kubectl.program.parent}{os.pathsep}{os.environ['PATH']}"
    return {**own, "PATH": path, "KUBECONFIG": str(kubeconfig), "HOME": str(tmp_path)}


@pytest.fixture
def person(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process see that environment."""
    for key in ("PATH", "KUBECONFIG", "HOME"):
        monkeypatch.setenv(key, environment[key])


class Session:
    """One run of the tool, and `docgrid` beside it."""

    def __init__(self, environment: dict[str, str], home: Path, log: Path) -> None:
        self.home = home
        self._environment = {**environment, "DOCGRID_HOME": str(home)}
        self._log = log
        with log.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, str(TOOL)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    def output(self) -> str:
        """Return what it has said."""
        return self._log.read_text()

    def wait_for(self, text: str) -> None:
        """Wait until it says something."""
        wait_until(lambda: text in self.output() or self.process.poll() is not None)
        assert text in self.output(), self.output()

    def docgrid(self, *arguments: str) -> None:
        """Run a command in the same home."""
        command = [sys.executable, "-m", "docgrid_cli.main", *arguments]
        subprocess.run(command, env=self._environment, check=True, capture_output=True, timeout=60)


@pytest.fixture
def session(environment: dict[str, str], crds: None, tmp_path: Path) -> Iterator[Session]:
    with scratch_folder() as folder:
        made = Session(environment, folder / "home", tmp_path / "session.log")
        try:
            yield made
        finally:
            made.process.send_signal(signal.SIGTERM)
            made.process.wait(60)


@pytest.mark.timeout(240)
def test_a_first_document_is_indexed_by_the_pool_that_it_proposes(
    session: Session, kubectl: Kubectl, node: StandInNode, tmp_path: Path
) -> None:
    session.wait_for("the operator works")
    kubectl("apply", "--filename", str(session.home / "small-pool.yaml"))
    kubectl("wait", "indexingworker/small", "--for=condition=Available", "--timeout=90s", limit=120)
    (tmp_path / "note.md").write_text("# Note\n\nThe pool has two workers.\n")
    session.docgrid("ingest", str(tmp_path / "note.md"))
    wait_until(lambda: kubectl.attempt("get", "indexingjob", "job-1").code == 0)
    indexed = "--for=jsonpath={.status.state}=INDEXED"
    kubectl("wait", "indexingjob/job-1", indexed, "--timeout=60s", limit=90)
    kubectl("delete", "indexingworker", "small")
    wait_until(lambda: kubectl("get", "pods", "-o", "name").out == "")
    session.process.send_signal(signal.SIGINT)
    assert session.process.wait(60) == 0
    assert "the operator has stopped" in session.output()
    assert "the database stops" in session.output()
    assert holder(session.home) is None


def test_a_secret_of_somebody_else_is_left_alone(person: None, kubectl: Kubectl) -> None:
    kubectl("create", "secret", "generic", "docgrid-storage", "--from-literal=access-key=mine")
    for _ in range(2):  # its own ones are brought up to date
        with Narrator() as narrator:
            operator_run.make_secrets(operator_run.Kubectl(), STACK, narrator)
    data = "jsonpath={.data}"
    assert "secret-key" not in kubectl("get", "secret", "docgrid-storage", "-o", data).out
    assert "url" in kubectl("get", "secret", "docgrid-database", "-o", data).out


def test_without_a_cluster_it_says_how_to_get_one(
    person: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(SettingsError, match=WRONG):
        operator_run.read_context(operator_run.Kubectl())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingsError, match="there is no kubectl"):
        operator_run.Kubectl()
