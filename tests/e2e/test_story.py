"""From an empty namespace to an answer, as the README tells it: chart, samples, real model, real pods."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import docgrid_cli
from support.backing import Backing
from support.chart import MANIFESTS
from support.cluster.helm import Helm
from support.cluster.node_cluster import NodeCluster
from support.image.build import Images
from support.races import wait_until
from support.release import OPERATOR, RELEASE, Release, new_release

pytestmark = pytest.mark.timeout(420)

MODEL = "multilingual-e5-small"
SAMPLES = Path(docgrid_cli.__file__).parent / "samples"
QUESTION = "what is to be done when somebody is hurt"
SENTENCES = ("the night is over", "bring them down at once")
"""Of the texts of samples: what the pods read may be told by search alone."""


@pytest.fixture
def empty(
    node_cluster: NodeCluster, backing: Backing, helm: Helm, images: Images, tmp_path: Path
) -> Iterator[Release]:
    """Yield a release to be installed where the samples find their servers by their short names."""
    made = new_release(
        node_cluster,
        backing,
        helm,
        image=images.docgrid.name,
        namespace=backing.kubectl.namespace,
        folder=tmp_path,
    )
    with made as release:
        yield release


def test_documents_are_indexed_by_real_pods_and_found(empty: Release) -> None:
    # 1. The operator; helm says what to do next.
    said = empty.install("--take-ownership", crds={"enabled": True})
    assert f"kubectl rollout status {OPERATOR}" in said
    # 2. The model.
    in_pod = ("exec", OPERATOR, "--container=operator", "--", "docgrid", "models")
    served = ("--version=multilingual-e5-small-q4", "--dimension=384", '--config={"input_type": true}')
    empty.kubectl(*in_pod, "add", MODEL, *served)
    empty.kubectl(*in_pod, "activate", MODEL)
    # 3. The pool of the samples, as it is there.
    empty.kubectl("apply", "--filename", str(MANIFESTS / "samples" / "small-pool.yaml"))
    empty.kubectl("wait", "indexingworker/small", "--for=condition=Available", "--timeout=60s")
    # 4. Documents: one of them is broken, as it says.
    ingested = docgrid(empty, "ingest", str(SAMPLES), "--wait", code=1)
    assert "old-catalogue.txt: DOCUMENT-PARSING-003" in ingested
    assert "1 FAILED, 12 INDEXED" in ingested
    # 5. What a person sees.
    count = "--output=jsonpath={range .items[*]}{.status.state}{'\\n'}{end}"
    expected = Counter({"INDEXED": 12, "FAILED": 1})
    wait_until(lambda: Counter(empty.kubectl("get", "indexingjobs", count).out.split()) == expected)
    rows = empty.kubectl("get", "indexingworkers,indexingjobs").out
    assert re.search(r"^indexingworker.docgrid.dev/small +2 ", rows, re.MULTILINE)
    assert re.search(r"old-catalogue.txt +1 +FAILED +1 .*DOCUMENT-PARSING-003", rows)
    # 6. An answer, by kubectl's plug-in.
    plugin = Path(sys.executable).with_name("kubectl-docgrid")
    assert "first-aid.txt" in docgrid(empty, "search", QUESTION, "-k", "1", program=[str(plugin)])
    # 7. helm's own proof.
    empty.helm("test", RELEASE, "--logs", "--timeout=80s")
    # 8. Nothing that was confided to it is told.
    ours = "app.kubernetes.io/name in (docgrid, docgrid-worker)"
    told = empty.kubectl("logs", f"--selector={ours}", "--all-containers", "--tail=-1").out
    described = empty.kubectl("get", "pods,events,indexingworkers,indexingjobs", "--output=yaml").out
    assert "the operator works" in told
    for secret in (empty.backing.password, empty.backing.secret_key, *SENTENCES):
        assert secret not in told + described


def docgrid(release: Release, *arguments: str, code: int = 0, program: Sequence[str] = ()) -> str:
    """Run the command `docgrid` on this machine against a release's servers; return what it said."""
    done = subprocess.run(
        [*(program or (sys.executable, "-m", "docgrid_cli.main")), *arguments],
        env={**os.environ, **release.backing.environment(release.database)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr
