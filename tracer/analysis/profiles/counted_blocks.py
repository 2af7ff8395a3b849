"""All blocks of a cycle with the sizes that the allocator counts, and the bytes of each kind over time.

Shapes: B blocks; D events of the device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tracer.analysis.kinds import Evidence, Kind, levels_by_kind
from tracer.analysis.profiles.classify_blocks import ClassifiedBlocks
from tracer.analysis.profiles.findings import CycleFindings
from tracer.arrays import Int, Ints, PerBlock


@dataclass(frozen=True, slots=True, eq=False)
class CountedBlocks:
    """Blocks of a cycle and when they live; at the peak they are the peak's rows."""

    blocks: ClassifiedBlocks
    made_at: PerBlock[Int]  # [B] Position among the events; -1 before them
    freed_at: PerBlock[Int]  # [B] Likewise; D for never
    num_events: int

    @property
    def by_kind(self) -> dict[Kind, Ints]:
        """Bytes of each kind alive before the first event and after each [D + 1], in the order of `LAYERS`."""
        blocks = self.blocks
        levels = levels_by_kind(blocks.kind, blocks.size_bytes, self.made_at, self.freed_at, self.num_events)
        return {kind: level for kind, level in levels.items() if level.any()}


def counted_blocks(cycle: CycleFindings) -> CountedBlocks:
    """Return the blocks of a cycle; those from before with sizes and stacks of the allocator's history, if it is there.

    A block that an engine unmaps while it sleeps is one block for each time that it is on the device. A tensor from
    before may be smaller than its block, which the allocator has rounded up or not split. A block that
    only the history has was never freed in the cycle: the recording would have the free.
    """
    counted, asleep = _counted_blocks(cycle), cycle.lifetimes.asleep
    if not len(asleep.address):
        return counted
    rows, made_at, freed_at = asleep.awake(counted.blocks.address, counted.made_at, counted.freed_at)
    return replace(counted, blocks=counted.blocks.take(rows), made_at=made_at, freed_at=freed_at)


def _counted_blocks(cycle: CycleFindings) -> CountedBlocks:
    lifetimes, blocks, num = cycle.lifetimes, cycle.blocks, len(cycle.lifetimes.events)
    if cycle.peak.allocator is None:
        return CountedBlocks(blocks, lifetimes.made_at, lifetimes.freed_at, num)
    at_peak = cycle.peak.blocks
    unseen = at_peak.evidence == Evidence.HISTORY
    before = np.flatnonzero((at_peak.allocation < 0) & ~unseen)
    row_at_peak = dict(zip(at_peak.address[before].tolist(), before.tolist(), strict=True))
    size_bytes, stack = blocks.size_bytes.copy(), blocks.stack.copy()
    for row in lifetimes.alive_at(cycle.peak.position).tolist():
        if blocks.allocation[row] < 0:  # what the allocator does not have is in the sizes of others
            same = row_at_peak.get(int(blocks.address[row]))
            size_bytes[row] = at_peak.size_bytes[same] if same is not None else 0
            stack[row] = at_peak.stack[same] if same is not None else -1
    more = at_peak.take(np.flatnonzero(unseen))
    return CountedBlocks(
        replace(blocks, size_bytes=size_bytes, stack=stack).followed_by(more),
        np.append(lifetimes.made_at, np.full(len(more), -1, np.int64)),
        np.append(lifetimes.freed_at, np.full(len(more), num, np.int64)),
        num,
    )
