"""W1 and W2: what a worker costs while it does nothing, and before it can do anything.

W1 is the memory of a worker's whole process tree in the local stack, some seconds after it has indexed a real
document: resident memory, which counts what several processes share once for each. W2 is the time in which a new
Python process has imported `docgrid_worker.worker`, the start of the interpreter included.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

from bench.figures import Benchmark, Outcome, Say, below
from bench.kills import Site, site, wait_for

LIMIT_MEGABYTES = 200.0
LIMIT_SECONDS = 1.0
_IMPORTS = 11
_MEASURES = 5

_IDLE = "SELECT count(*) FROM worker_nodes WHERE status = 'IDLE'"
_INDEXED = "SELECT count(*) FROM embedding_jobs WHERE status = 'INDEXED'"


def measure_memory(say: Say) -> Outcome:
    """Let a worker index a document, then weigh it."""
    with site(1) as stack:
        stack.ingest("weighed", paragraphs=20)
        wait_for(lambda: stack.count(_INDEXED) == 1, "the document to be indexed")
        wait_for(lambda: stack.count(_IDLE) == 1, "the worker's next heartbeat")
        resident, shared_fairly = _weigh(stack, say)
    figure = below(
        "idle worker, whole process tree",
        resident,
        unit="MB",
        limit=LIMIT_MEGABYTES,
        note=f"{shared_fairly:.0f} MB with shared pages split (PSS)",
    )
    return Outcome([figure], {"resident_megabytes": resident, "proportional_megabytes": shared_fairly})


def _weigh(stack: Site, say: Say) -> tuple[float, float]:
    """Return resident and proportional megabytes of the worker and its descendants, the most that was seen."""
    seen = []
    for _ in range(_MEASURES):
        root = psutil.Process(stack.workers()[0].pid)
        tree = [process.memory_full_info() for process in (root, *root.children(recursive=True))]
        seen.append((sum(one.rss for one in tree) / 1e6, sum(one.pss for one in tree) / 1e6))
        time.sleep(0.5)
    say(f"{len(tree)} process(es), {max(seen)[0]:.0f} MB")
    return max(seen)


def measure_import(say: Say) -> Outcome:
    """Import the worker in new processes, in turn with processes that import nothing."""
    bare, full = [], []
    for _ in range(_IMPORTS):
        bare.append(_seconds("pass"))
        full.append(_seconds("import docgrid_worker.worker"))
    say(f"{min(full):.2f} to {max(full):.2f} s")
    figure = below(
        "worker imported",
        statistics.median(full),
        unit="s",
        limit=LIMIT_SECONDS,
        note=f"{statistics.median(bare):.3f} s for Python alone",
    )
    return Outcome([figure], {"seconds": full, "python_seconds": bare})


def _seconds(code: str) -> float:
    command: Sequence[str] = (sys.executable, "-c", code)
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


MEMORY = Benchmark("W1", "Memory of an idle worker", __doc__, measure_memory)
IMPORT = Benchmark("W2", "Start of a worker", __doc__, measure_import)
