"""How much of backward's memory gets its line of forward, in real snapshots.

    python -m benchmarks.backward_lines FILE...

Of each device: bytes that nodes of autograd made, the percent of them with a line, and of the runs of equal nodes that
were found in forward those whose number or sizes contradict it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tracer.analysis.snapshots.findings import ReplayedSnapshot, replay_snapshot
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.snapshot.load import load_snapshot


def line(name: str, snapshot: ReplayedSnapshot, device: ReplayedDevice) -> str | None:
    """The figures of one device; None where the recording has no nodes."""
    lives, lines = device.replay.lives, device.kinds.backward_lines
    rows = np.flatnonzero((snapshot.sites.autograd.node[lives.stack] >= 0) & (lives.begin >= 0))
    if not len(rows):
        return None
    sizes = lives.requested_bytes[rows]
    named = sizes[lines.forward_stacks(rows) >= 0].sum()
    passes = [lines.matched(number) for number in range(len(device.kinds.phases.backwards[0]))]
    contradicted, found = sum(one.contradicted for one in passes), sum(one.found for one in passes)
    share = 100 * named / sizes.sum()
    return f"{name:<42}{sizes.sum() / 2**20:>12,.1f}{share:>8.1f}{contradicted:>14}{found:>8}"


def main() -> None:
    print(f"{'recording':<42}{'MiB':>12}{'named %':>8}{'contradicting':>14}{'runs':>8}")
    for path in map(Path, sys.argv[1:]):
        snapshot = replay_snapshot(load_snapshot(path))
        for device in snapshot.devices:
            if found := line(path.name, snapshot, device):
                print(found)


if __name__ == "__main__":
    main()
