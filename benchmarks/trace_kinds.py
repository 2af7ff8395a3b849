"""Kinds of blocks that a trace of a run tells otherwise than the run itself, over the workloads of the tests.

python -m benchmarks.trace_kinds
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from tests.trace.test_own_runs import both
from tests.training_steps import WORKLOADS
from tracer.analysis.kinds import Evidence, Kind

_Row = tuple[str, str, str]


def main() -> None:
    """Print a row for each pair of kinds."""
    counts: Counter[_Row] = Counter()
    sizes: Counter[_Row] = Counter()
    num_blocks = num_compared = 0
    for name in WORKLOADS:
        run, trace = both(name)
        made = [np.flatnonzero(cycle.lifetimes.allocation >= 0) for cycle in (run, trace)]
        if len({len(rows) for rows in made}) > 1:
            print(f"{name}: left out, its trace has other blocks")
            continue
        in_order = [
            rows[np.argsort(cycle.lifetimes.made_at[rows], kind="stable")]
            for cycle, rows in zip((run, trace), made, strict=True)
        ]
        num_compared += 1
        num_blocks += len(in_order[0])
        for of_run, of_trace in zip(*in_order, strict=True):
            kinds = Kind(run.blocks.kind[of_run]).words, Kind(trace.blocks.kind[of_trace]).words
            if kinds[0] != kinds[1]:
                row = (*kinds, Evidence(trace.blocks.evidence[of_trace]).text)
                counts[row] += 1
                sizes[row] += int(run.lifetimes.size_bytes[of_run])
    print(
        f"{num_compared} workloads, {num_blocks:,} blocks\n\n| run | trace | blocks | bytes | evidence of the trace |"
    )
    print("| --- | --- | --- | --- | --- |")
    for row, count in counts.most_common():
        print(f"| {row[0]} | {row[1]} | {count:,} | {sizes[row]:,} | {row[2]} |")


if __name__ == "__main__":
    main()
