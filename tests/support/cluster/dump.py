"""What a cluster says of itself, for the report of a test that failed: objects, events, the ends of all logs."""

from pathlib import Path

from support.cluster.kubectl import Kubectl
from support.cluster.node_cluster import NodeCluster

_TAIL = 25  # lines of a log
_OBJECTS = "nodes,indexingworkers,indexingjobs,deployments,replicasets,pods,poddisruptionbudgets"


def dump(cluster: NodeCluster) -> str:
    """Return it as a text; what can not be had is told as such."""
    kubectl = cluster.plane.kubectl()
    parts = [
        _say(kubectl, "get", _OBJECTS, "--all-namespaces", "--output=wide"),
        _say(kubectl, "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", tail=60),
        *_logs(kubectl),
        *(_end_of(log) for node in cluster.nodes for log in sorted(node.plan.folder.glob("*.log"))),
    ]
    return "\n\n".join(parts)


def _logs(kubectl: Kubectl) -> list[str]:
    found = kubectl.attempt(
        "get",
        "pods",
        "--all-namespaces",
        "--no-headers",
        "--output=custom-columns=:metadata.namespace,:metadata.name",
    )
    pods = [line.split() for line in found.out.splitlines()]
    options = ("--all-containers", "--prefix", f"--tail={_TAIL}")
    return [_say(kubectl, "logs", "--namespace", namespace, pod, *options) for namespace, pod in pods]


def _say(kubectl: Kubectl, *arguments: str, tail: int = 0) -> str:
    said = kubectl.attempt(*arguments)
    lines = (said.out + said.err).splitlines()
    return "\n".join([f"$ kubectl {' '.join(arguments)}", *lines[-tail:]])


def _end_of(log: Path) -> str:
    return "\n".join(
        [f"== {log.parent.name}/{log.name}", *log.read_text(errors="replace").splitlines()[-_TAIL:]]
    )
