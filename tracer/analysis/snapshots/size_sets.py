"""Parameters and optimizer state from before a recording, told apart by how often each gradient's size is there.

A step of training leaves one gradient for each parameter. Where the blocks that were there before, and stay, have the
sizes of gradients two or three times over, one set is the parameters, and the others are the optimizer's: momentum, or
Adam's averages. Which of two equal blocks is which, their addresses say: parameters are made first. A driver that takes
addresses from where the host's `mmap` does (0x7f...), as the null GPU at its own place, goes down from one chunk of
32 MiB to the next, others go up: so 0.04 to 0.15 and 0.97 of the steps between segments in public recordings; within a
chunk, and so within a segment, addresses rise.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from tracer.allocator.driver import CHUNK_BYTES
from tracer.arrays import Ints
from tracer.snapshot.columns import Segments

_TIMES: Final = (2, 3)
"""Of parameters and momentum, and of parameters and Adam's averages. More may be a copy of the weights."""
_FALLING_FROM: Final = 0x1000_0000_0000
"""Addresses that the host's `mmap` gives, from the top down, and the null GPU's."""
_SHARE_OF_SETS: Final = 0.9
"""Of the gradients' bytes, whose sizes have to be there as many times."""
_MAX_SIZES: Final = 100
_MAX_ODD_SIZES: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class SizeSets:
    """Sizes of blocks that are there once for each parameter, and once or twice more for its state."""

    times: int  # Blocks for each gradient: 2 or 3; 0 where most of the gradients' bytes say something else
    sizes: Ints  # Of gradients of which there are as many
    # Of the state of parameters that lie in one block, as those of cuDNN's recurrent layers do: it has a block each.
    of_parts: Ints


def sets_of_sizes(size: Ints, of_sizes: Ints, numbers: Ints) -> SizeSets:
    """How many times over there are blocks of the gradients' sizes.

    Args:
        size: Sizes of the blocks [blocks].
        of_sizes: Sizes of gradients, ascending [sizes].
        numbers: How many there are of each [sizes].
    """
    nothing = size[:0]
    if not len(of_sizes):
        return SizeSets(0, nothing, nothing)
    at = np.minimum(np.searchsorted(of_sizes, size), len(of_sizes) - 1)
    has_gradient = of_sizes[at] == size
    count = np.bincount(at[has_gradient], minlength=len(of_sizes))
    times = np.where(count % numbers == 0, count // numbers, 0)
    gradient_bytes, parts = of_sizes * numbers, size[~has_gradient]
    for number in _TIMES:
        one_block_bytes = int(gradient_bytes[times == 1].sum())
        of_parts = _that_sum_to((number - 1) * one_block_bytes, parts)
        of_sets = times == number
        known_bytes = gradient_bytes[of_sets].sum() + (one_block_bytes if len(of_parts) else 0)
        if known_bytes >= _SHARE_OF_SETS * gradient_bytes.sum():
            return SizeSets(number, of_sizes[of_sets], of_parts)
    return SizeSets(0, nothing, nothing)


def _that_sum_to(wanted_bytes: int, parts: Ints) -> Ints:
    """The sizes of parts that have so many bytes in all, but for up to two sizes: of a batch and its targets, say."""
    sizes, count = np.unique(parts, return_counts=True)
    of_size = (sizes * count).tolist()
    excess_bytes = sum(of_size) - wanted_bytes
    if wanted_bytes > 0 and len(sizes) <= _MAX_SIZES:
        for number in range(_MAX_ODD_SIZES + 1):
            for odd in combinations(range(len(sizes)), number):
                if sum(of_size[at] for at in odd) == excess_bytes:
                    return np.delete(sizes, odd)
    return sizes[:0]


def first_of_each(rows: Ints, size: Ints, addr: Ints, times: int, segments: Segments) -> Ints:
    """Those of some blocks that were made first, one of so many of each size, by the order of their addresses.

    Args:
        rows: The blocks, `times` n of each size.
        size: Requested bytes of all blocks [lives].
        addr: Their addresses [lives].
        segments: Segments in the end.
    """
    begins = np.sort(segments.address)
    is_falling = bool(len(begins)) and int(begins[0]) >= _FALLING_FROM and not segments.is_expandable.any()
    chunk = begins[np.searchsorted(begins, addr[rows], side="right") - 1] // CHUNK_BYTES if is_falling else 0 * rows
    order = np.lexsort((addr[rows], -chunk, size[rows]))
    sizes = size[rows[order]]
    begin = np.flatnonzero(np.append(True, sizes[1:] != sizes[:-1]))
    number = np.diff(np.append(begin, len(sizes)))
    place = np.arange(len(sizes)) - np.repeat(begin, number)
    return rows[order[place < np.repeat(number // times, number)]]
