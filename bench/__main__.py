"""`python -m bench [ID …]`: runs all benchmarks, or those that are named, and writes `docs/benchmarks/`.

The tests' folder has to be on the path: `make bench` sees to it. Ends with exit code 1 when a target was missed,
2 for an id that does not exist.
"""

import logging
import sys
from datetime import UTC, datetime

import structlog

from bench import (
    claiming,
    footprint,
    kills,
    operator_pools,
    operator_views,
    pod_footprint,
    real_pods,
    recovery,
    report,
    storing,
    throughput,
)
from bench.figures import Benchmark

ALL = (
    throughput.BENCHMARK,
    claiming.BENCHMARK,
    storing.BENCHMARK,
    kills.BENCHMARK,
    real_pods.BENCHMARK,
    recovery.BENCHMARK,
    footprint.MEMORY,
    footprint.IMPORT,
    pod_footprint.BENCHMARK,
    operator_pools.BENCHMARK,
    operator_views.BENCHMARK,
)


def main(wanted: list[str]) -> int:
    """Run the wanted benchmarks; return the exit code."""
    known = {benchmark.id: benchmark for benchmark in ALL}
    if unknown := sorted(set(wanted) - set(known)):
        print(f"there is no benchmark {', '.join(unknown)}: choose from {' '.join(known)}", file=sys.stderr)
        return 2
    # What maintenance tells about recovered jobs is what these benchmarks are made of.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    taken = [_take(known[id_]) for id_ in wanted or known]
    report.write(ALL, taken)
    print(report.table(taken))
    return 0 if all(figure.ok for one in taken for figure in one.figures) else 1


def _take(benchmark: Benchmark) -> report.Taken:
    load = report.load_average()
    print(f"{benchmark.id}  {benchmark.title} (load {load:.1f})", flush=True)
    at = datetime.now(UTC).isoformat(timespec="minutes")
    outcome = benchmark.run(lambda line: print(f"    {line}", flush=True))
    return report.Taken(benchmark.id, at, load, tuple(outcome.figures), outcome.details)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
