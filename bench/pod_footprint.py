"""K1: what the pods of a release cost: a worker's start, an idle operator, the image.

A real node runs the release of the chart with a pool of two workers. Eight times one of its pods is deleted by force:
the new pod's start lasts from its container's first process, whose age the kernel tells, until the apiserver says
that the pod is ready, asked every 20 ms. Then all is idle for a minute. The operator's memory is its container's
working set, as the kubelet and `kubectl top` count it: what its control group uses, without files that can be
dropped. Its share of a core is what its control group was charged for in that minute. The image's size is what its
layers unpack to.
"""

import tarfile
import time
from pathlib import Path

from bench import node_release
from bench.figures import Benchmark, Outcome, Say, below
from support.image.archive import Image, read_description
from support.release import Release

WORKERS = 2
STARTS = 8
START_SECONDS = 5.0
OPERATOR_MEGABYTES = 150.0
OPERATOR_PERCENT = 2.0
IMAGE_MEGABYTES = 350.0
IDLE_SECONDS = 60.0
_SETTLE = 30.0
_PAUSE = 0.02
_HERTZ = 100  # of the kernel's times, on every architecture that Linux tells them on


def measure(say: Say) -> Outcome:
    """Start pods, then look at the idle operator."""
    with node_release.running(say) as (release, images):
        release.start_workers(WORKERS)
        starts = [_time_of_start(release) for _ in range(STARTS)]
        say(f"starts: {', '.join(f'{each:.2f}' for each in starts)} s")
        time.sleep(_SETTLE)
        percent, megabytes = _operator_cost(release)
    size = _size_of(images.docgrid)
    say(f"operator: {megabytes:.0f} MB, {percent:.2f} % of a core; image {size:.0f} MB")
    figures = [
        below(
            f"{STARTS} worker pods: container to ready, longest",
            max(starts),
            unit="s",
            limit=START_SECONDS,
            note=f"shortest {min(starts):.2f} s",
        ),
        below("idle operator pod, working set", megabytes, unit="MB", limit=OPERATOR_MEGABYTES),
        below("idle operator pod, CPU", percent, unit="% of a core", limit=OPERATOR_PERCENT),
        below("image, unpacked", size, unit="MB", limit=IMAGE_MEGABYTES),
    ]
    return Outcome(figures, {"seconds": starts})


def _time_of_start(release: Release) -> float:
    """Let a new pod take the place of one, and return how long its worker took to be ready."""
    before = _names(release)
    release.delete_by_force(before.pop())
    while not (fresh := _ready(release) - before) or len(_ready(release)) < WORKERS:
        time.sleep(_PAUSE)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    (pod,) = fresh
    (pid, *_) = release.node_of(pod).pids_of(release.container_of(pod))
    # The fields after the program's name, which is in parentheses; the 22nd of all is the start since boot.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    release.wait_until_ready(WORKERS)
    return now - int(fields[19]) / _HERTZ


def _names(release: Release) -> set[str]:
    return {pod["metadata"]["name"] for pod in release.pods()}


def _ready(release: Release) -> set[str]:
    node = release.cluster.nodes[0].name
    return {pod["metadata"]["name"] for pod in release.ready_pods(node)}


def _operator_cost(release: Release) -> tuple[float, float]:
    """Return the percent of a core that the operator takes, and its megabytes afterwards."""
    pod = release.operator_pod()
    node, container = release.node_of(pod), release.container_of(pod)
    before, began = node.cpu_seconds_of(container), time.monotonic()
    time.sleep(IDLE_SECONDS)
    used, lasted = node.cpu_seconds_of(container) - before, time.monotonic() - began
    return 100 * used / lasted, node.working_set_of(container) / 1e6


def _size_of(image: Image) -> float:
    """Return the megabytes that the layers of an image unpack to."""
    size = 0
    with tarfile.open(image.archive) as archive:
        manifest, _ = read_description(archive)
        for name in manifest["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                size += sum(member.size for member in layer)
    return size / 1e6


BENCHMARK = Benchmark("K1", "Pods and their image", __doc__, measure)
