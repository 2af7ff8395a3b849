"""Bytes of each kind alive after each event: the same blocks as in the peak report, over the whole recording."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analysis.kinds import LAYERS, Kind
from tracer.analysis.profiles.block_lifetimes import BlockLifetimes
from tracer.analysis.profiles.classify_blocks import ClassifiedBlocks
from tracer.arrays import Int, PerEvent, in_use


@dataclass(frozen=True, slots=True, eq=False)
class KindLevel:
    """Bytes of one kind over a recording."""

    kind: Kind
    before_bytes: int
    values_bytes: PerEvent[Int]  # [D] Bytes alive after each of `BlockLifetimes.events`


def memory_by_kind(lifetimes: BlockLifetimes, blocks: ClassifiedBlocks) -> tuple[KindLevel, ...]:
    """Follow each kind over a recording; together they are all that is alive.

    Returns:
        The kinds that occur, in the order of `LAYERS`.
    """
    levels = []
    end = len(lifetimes.events)
    for kind in LAYERS:
        mine = blocks.kind == kind
        if not mine.any():
            continue
        size_bytes, made_at = lifetimes.size_bytes[mine], lifetimes.made_at[mine]
        level = in_use(size_bytes, made_at, lifetimes.freed_at[mine], end)[1:]
        levels.append(KindLevel(kind, int(size_bytes[made_at < 0].sum()), level))
    return tuple(levels)
