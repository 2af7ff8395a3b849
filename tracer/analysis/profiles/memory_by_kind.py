"""Bytes of each kind alive after each event: the same blocks as in the peak report, over the whole recording."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracer.analysis.kinds import Kind
from tracer.analysis.profiles.block_lifetimes import Storages
from tracer.analysis.profiles.classify_blocks import Blocks

Ints = npt.NDArray[np.int64]

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
    Kind.WORKSPACE,
    Kind.BEFORE_RECORDING,
    Kind.UNKNOWN,
)


@dataclass(frozen=True, slots=True, eq=False)
class KindLevel:
    """One kind over a recording.

    Attributes:
        kind: Which.
        before_bytes: Alive before the first event.
        values_bytes: [D] Alive after each of `Storages.events`.
    """

    kind: Kind
    before_bytes: int
    values_bytes: Ints


def memory_by_kind(storages: Storages, blocks: Blocks) -> tuple[KindLevel, ...]:
    """Follow each kind over a recording; together they are `Storages.level_bytes`.

    Args:
        storages: One device's blocks.
        blocks: The same blocks, classified.

    Returns:
        The kinds that occur, torch's first and in torch's order.
    """
    found = []
    end = len(storages.events)
    for kind in _ORDER:
        mine = blocks.kind == kind
        if not mine.any():
            continue
        change = np.zeros(end + 2, np.int64)
        np.add.at(change, storages.made_at[mine] + 1, storages.size_bytes[mine])
        np.add.at(change, storages.freed_at[mine] + 1, -storages.size_bytes[mine])
        level = np.cumsum(change)
        found.append(KindLevel(kind, int(level[0]), np.asarray(level[1 : end + 1], np.int64)))
    return tuple(found)
