"""`make cluster-up NODES=…`: real nodes with the images of this checkout, and servers to try a release on.

`__main__` calls it, and `make image` for a cluster that runs. PostgreSQL, the object store and the embedding model
run in the namespace `default` under the names that the samples use, and the Secrets of the samples are there: what is
left to a person is `helm install`.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from support.backing import SERVERS, Backing
from support.cluster.binaries import Binaries, Report
from support.cluster.node import import_image
from support.cluster.node_cluster import NodeCluster
from support.cluster.places import Places
from support.cluster.programs import prepare_node
from support.image.build import Images
from support.image.build import prepare as build_images

VALUES = "values.yaml"
ENVIRONMENT = "docgrid.env"
DATABASE = "docgrid"
_COMMANDS = ("docgrid", "kubectl-docgrid")


@contextmanager
def running(
    made: Binaries, folder: Path, *, nodes: int, mark: Mapping[str, str], report: Report
) -> Iterator[NodeCluster]:
    """Yield a running cluster in which everything but the release is there."""
    images = build_images(report)
    cluster = NodeCluster(
        made,
        prepare_node(report),
        folder,
        nodes=nodes,
        mark=mark,
        node_ports=[server.node_port for server in SERVERS],
    )
    cluster.start([images.pause.archive, images.docgrid.archive], report)
    try:
        backing = Backing(cluster, cluster.plane.kubectl(), images.backing)
        report("starting PostgreSQL, an S3 server and an embedding model in pods")
        backing.start()
        backing.make_secrets(backing.kubectl, DATABASE)
        _write_values(folder, images)
        _write_environment(folder, backing)
        yield cluster
    finally:
        cluster.stop()


def load(places: Places, images: Images, report: Report) -> bool:
    """Load the project's image into the nodes of a running cluster, for its next release; tell whether there is one."""
    nodes = places.nodes
    for name, pid in nodes.items():
        report(f"loading {images.docgrid.name} into {name}")
        import_image(prepare_node(report), pid, images.docgrid.archive)
    if nodes:
        _write_values(places.run, images)
    return bool(nodes)


def hints(folder: Path) -> list[str]:
    """Return what a person says next."""
    return [
        f"set -a; . {folder / ENVIRONMENT}; set +a",
        f"helm install docgrid helm/docgrid --values {folder / VALUES}",
    ]


def link_commands(programs: Path) -> None:
    """Put the commands of this checkout beside kubectl and helm."""
    for name in _COMMANDS:
        (programs / name).symlink_to(Path(sys.executable).with_name(name))


def _write_values(folder: Path, images: Images) -> None:
    repository, _, tag = images.docgrid.name.rpartition(":")
    image = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
    values = {"image": image, "database": {"secretName": "docgrid-database"}}
    (folder / VALUES).write_text(yaml.safe_dump(values))


def _write_environment(folder: Path, backing: Backing) -> None:
    path = folder / ENVIRONMENT
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in backing.environment(DATABASE).items()))
