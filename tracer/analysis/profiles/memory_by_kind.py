"""Bytes of each kind alive after each event: the same blocks as in the peak report, over the whole recording."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.allocator_order import alive_bytes
from tracer.analysis.profiles.block_lifetimes import BlockLifetimes
from tracer.analysis.profiles.classify_blocks import ClassifiedBlocks
from tracer.arrays import Int, PerEvent

# Torch's columns first, in torch's order, then what we know beyond them.
_ORDER = (
    Kind.PARAMETER,
    Kind.BUFFER,
    Kind.OPTIMIZER_STATE,
    Kind.INPUT,
    Kind.TEMPORARY,
    Kind.ACTIVATION,
    Kind.GRADIENT,
    Kind.AUTOGRAD_DETAIL,
    Kind.COMMUNICATION,
    Kind.WORKSPACE,
    Kind.EVALUATION,
    Kind.HELD,
    Kind.BEFORE_RECORDING,
    Kind.UNKNOWN,
)


@dataclass(frozen=True, slots=True, eq=False)
class KindLevel:
    """Bytes of one kind over a recording.

    Attributes:
        kind: The kind.
        before_bytes: Bytes alive before the first event.
        values_bytes: [D] Bytes alive after each of `BlockLifetimes.events`.
    """

    kind: Kind
    before_bytes: int
    values_bytes: PerEvent[Int]


def memory_by_kind(lifetimes: BlockLifetimes, blocks: ClassifiedBlocks) -> tuple[KindLevel, ...]:
    """Follow each kind over a recording; together they are all that is alive.

    Returns:
        The kinds that occur, torch's first and in torch's order.
    """
    levels = []
    end = len(lifetimes.events)
    for kind in _ORDER:
        mine = blocks.kind == kind
        if not mine.any():
            continue
        size_bytes, made_at = lifetimes.size_bytes[mine], lifetimes.made_at[mine]
        level = alive_bytes(size_bytes, made_at, lifetimes.freed_at[mine], end)
        levels.append(KindLevel(kind, int(size_bytes[made_at < 0].sum()), level))
    return tuple(levels)
