"""`python -m bench [ID …]`: runs all benchmarks, or those that are named, and writes `docs/benchmarks/`.

Ends with exit code 1 when a target was missed, 2 for an id that does not exist.
"""

import sys

from bench import claiming, footprint, kills, recovery, storing, throughput

ALL = (
    throughput.BENCHMARK,
    claiming.BENCHMARK,
    storing.BENCHMARK,
    kills.BENCHMARK,
    recovery.BENCHMARK,
    footprint.MEMORY,
    footprint.IMPORT,
)


def main(wanted: list[str]) -> int:
    """Run the wanted benchmarks; return the exit code."""
    for benchmark in ALL:
        if benchmark.id in wanted:
            outcome = benchmark.run(lambda line: print("  ", line, flush=True))
            print(*outcome.figures, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
