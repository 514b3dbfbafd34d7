"""`make operator-run`: the operator in the foreground, against the current kubeconfig and the local stack.

Starts the servers of the local stack unless they run, and prepares the current namespace: the CRDs, the Secrets
that the samples name, and a copy of the smallest sample with the addresses of the stack. It says what it does,
and Ctrl-C ends what it started. What is in the cluster stays.
"""

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from docgrid_cli.errors import run_reporting
from docgrid_cli.local import profile
from docgrid_cli.local.home import holder, home_folder, write_private
from docgrid_cli.local.modelserver import MODEL
from docgrid_cli.local.ports import LOOPBACK, free_ports
from docgrid_cli.local.stack import LocalStack, running
from docgrid_cli.narrator import Narrator
from docgrid_cli.terminal import quiet_logs
from docgrid_core.errors import SettingsError

ROOT = Path(__file__).resolve().parent.parent
CRDS = ROOT / "crds"
SAMPLE = ROOT / "manifests" / "samples" / "small-pool.yaml"
OWN = {"app.kubernetes.io/managed-by": "docgrid-operator-run"}
STOP_SECONDS = 20.0

Object = dict[str, Any]

_READY = """
The operator looks after IndexingWorkers of the namespace {namespace}. In another terminal:
  kubectl apply -f {sample}
  kubectl get indexingworkers,indexingjobs --watch
  docgrid ingest DIR          then see them work
Its metrics are at http://{host}:{port}/metrics. Press Ctrl-C here to stop it, with the servers that it
started; what is in the cluster stays.
"""


class Kubectl:
    """kubectl of `PATH` with the current kubeconfig; raises `SettingsError` with what it says."""

    def __init__(self) -> None:
        program = shutil.which("kubectl")
        if program is None:
            raise SettingsError(f"PATH: there is no kubectl: {_HINT}")
        self._program = program

    def __call__(self, *arguments: str, send: str = "") -> str:
        """Run `kubectl arguments` with `send` as its input and return what it says."""
        done = subprocess.run(
            [self._program, *arguments], input=send, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SettingsError(f"kubectl: {done.stderr.strip().splitlines()[-1]}: {_HINT}")
        return done.stdout

    def get(self, kind: str, name: str) -> Object | None:
        """Return an object, or None."""
        said = self("get", kind, name, "--ignore-not-found", "--output=json")
        found: Object | None = json.loads(said) if said else None
        return found


_HINT = "choose a cluster by KUBECONFIG, or run `make cluster-up` and say the lines that it prints"


def main() -> int:
    """Prepare cluster and stack, then run the operator until a signal comes; return the exit code."""
    quiet_logs()
    with Narrator() as narrator:
        kubectl = Kubectl()
        context, namespace = read_context(kubectl)
        narrator.tell(f"the context is {context}, the namespace {namespace}")
        install_crds(kubectl, narrator)
        with contextlib.suppress(KeyboardInterrupt), local_stack(narrator) as reach:
            make_secrets(kubectl, reach, narrator)
            sample = home_folder() / SAMPLE.name
            write_private(sample, yaml.safe_dump(build_sample(reach), sort_keys=False))
            environment = build_environment(reach, namespace)
            narrator.plain(
                _READY.format(
                    namespace=namespace,
                    sample=shlex.quote(str(sample)),
                    host=environment["DOCGRID_OPERATOR_HEALTH_HOST"],
                    port=environment["DOCGRID_OPERATOR_HEALTH_PORT"],
                )
            )
            return run_operator(environment)
    return 0


def read_context(kubectl: Kubectl) -> tuple[str, str]:
    """Return the current context and its namespace."""
    config = json.loads(kubectl("config", "view", "--minify", "--output=json"))
    context = config["contexts"][0]
    return context["name"], context["context"].get("namespace") or "default"


def install_crds(kubectl: Kubectl, narrator: Narrator) -> None:
    """Apply those of our CRDs that the cluster does not have; one that is there may be of another release."""
    for path in sorted(CRDS.glob("*.yaml")):
        name = yaml.safe_load(path.read_text())["metadata"]["name"]
        if kubectl.get("customresourcedefinition", name) is None:
            kubectl("apply", "--server-side", "--filename", str(path))
            kubectl(
                "wait", "--for=condition=Established", "--timeout=30s", f"customresourcedefinition/{name}"
            )
            narrator.tell(f"the CustomResourceDefinition {name} is installed")


@contextlib.contextmanager
def local_stack(narrator: Narrator) -> Iterator[profile.Profile]:
    """Yield how to reach the servers of the local stack; those that run already are left running."""
    home = home_folder()
    reach = profile.read(home)
    if reach is not None and holder(home) is not None:
        narrator.tell("the local stack runs already: workers that it has take jobs too")
        yield reach
        return
    with running(LocalStack(home, workers=0, report=narrator.tell_event)) as started:
        yield started


def make_secrets(kubectl: Kubectl, reach: profile.Profile, narrator: Narrator) -> None:
    """Write the Secrets that the samples name; one of the same name that we have not made is left alone."""
    secrets = {
        "docgrid-database": {"url": reach.database_url},
        "docgrid-storage": {"access-key": reach.s3_access_key, "secret-key": reach.s3_secret_key},
    }
    for name, data in secrets.items():
        there = kubectl.get("secret", name)
        if there is not None and not OWN.items() <= (there["metadata"].get("labels") or {}).items():
            narrator.tell(f"the Secret {name} is somebody else's and is left as it is", "red")
            continue
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": OWN}}
        kubectl("apply", "--filename=-", send=json.dumps({**secret, "stringData": data}))
        narrator.tell(f"the Secret {name} leads to the local stack")


def build_sample(reach: profile.Profile) -> Object:
    """Return the smallest sample with model, addresses and patience as the stack needs them."""
    settings = reach.settings()
    pool: Object = yaml.safe_load(SAMPLE.read_text())
    pool["spec"]["model"] = {"name": MODEL}
    pool["spec"]["embedding"] = {
        "baseUrl": settings["DOCGRID_EMBEDDING_BASE_URL"],
        "batchSize": int(settings["DOCGRID_EMBEDDING_BATCH_SIZE"]),
        "concurrency": int(settings["DOCGRID_EMBEDDING_CONCURRENCY"]),
        "readTimeout": settings["DOCGRID_EMBEDDING_READ_TIMEOUT"],
    }
    pool["spec"]["storage"]["endpoint"] = settings["DOCGRID_STORAGE_ENDPOINT"]
    return pool


def build_environment(reach: profile.Profile, namespace: str) -> dict[str, str]:
    """Return the operator's environment: what the person has set goes first, except where the stack is."""
    defaults = {
        "DOCGRID_OPERATOR_NAMESPACE": namespace,
        "DOCGRID_OPERATOR_WORKER_IMAGE": f"docgrid:{version('docgrid')}",
        "DOCGRID_OPERATOR_HEALTH_HOST": LOOPBACK,
        "DOCGRID_OPERATOR_HEALTH_PORT": str(free_ports()),
        "DOCGRID_LOG_FORMAT": "console",
    }
    return {**defaults, **os.environ, **reach.settings()}


def run_operator(environment: Mapping[str, str]) -> int:
    """Run the operator until it ends; Ctrl-C reaches it too, and it is waited for."""
    operator = subprocess.Popen([sys.executable, "-P", "-m", "docgrid_operator"], env=dict(environment))
    try:
        return operator.wait()
    finally:
        operator.terminate()
        try:
            operator.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            operator.kill()
            operator.wait()


if __name__ == "__main__":
    sys.exit(run_reporting(main, debug=False))
