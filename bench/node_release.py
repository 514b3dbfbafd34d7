"""A release on a cluster with a real node, for the benchmarks of pods.

The chart is installed with the image of this checkout, every setting at its default; PostgreSQL, the object store and
the embedding server are the end-to-end tests'.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Say
from support.backing import SERVERS, Backing
from support.cluster import binaries
from support.cluster.fixtures import create_namespace, install_crds, prepare_nodes
from support.cluster.helm import Helm
from support.cluster.node_cluster import NodeCluster
from support.image.build import Images
from support.release import Release, new_release


@contextlib.contextmanager
def running(say: Say) -> Iterator[tuple[Release, Images]]:
    """Yield an installed release with a model and without pools; nothing of it remains afterwards."""
    made = binaries.prepare(say)
    programs, images = prepare_nodes(say)
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch, contextlib.ExitStack() as stack:
        folder = Path(scratch)
        for name in ("cluster", "helm", "documents"):
            (folder / name).mkdir()
        cluster = NodeCluster(
            made,
            programs,
            folder / "cluster",
            nodes=1,
            node_ports=[server.node_port for server in SERVERS],
        )
        cluster.start([images.pause.archive, images.docgrid.archive], say)
        stack.callback(cluster.stop)
        install_crds(cluster.plane.kubectl())
        create_namespace(cluster.plane.api, "backing")
        backing = Backing(cluster, cluster.plane.kubectl("backing"), images.backing)
        backing.start()
        helm = Helm(made.helm, folder / "helm")
        release = stack.enter_context(
            new_release(cluster, backing, helm, image=images.docgrid.name, folder=folder / "documents")
        )
        release.install()
        release.add_model()
        yield release, images
