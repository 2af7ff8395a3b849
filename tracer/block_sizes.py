"""Sizes of the block and of the segment that the allocator makes for a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]

_MIB = 1 << 20

MIN_BLOCK_BYTES = 512
"""Every block is a multiple of this."""
SMALL_BYTES = _MIB
"""The largest rounded request that the small pool serves; what a block of the large pool may keep unsplit."""
SMALL_SEGMENT_BYTES = 2 * _MIB
"""A segment, or a page of an expandable segment, of the small pool."""
LARGE_SEGMENT_BYTES = 20 * _MIB
"""A segment for requests below `OWN_SEGMENT_BYTES`, or a page of an expandable segment, of the large pool."""
OWN_SEGMENT_BYTES = 10 * _MIB
"""From this rounded size on a request gets a segment of its own size."""
SEGMENT_STEP_BYTES = 2 * _MIB
"""Such a segment is a multiple of this."""

NUM_INTERVALS = 16
"""`roundup_power2_divisions` has a number for each power of two from 1 MiB to 32 GiB."""
_FIRST_INTERVAL = 20
NO_DIVISIONS = (0,) * NUM_INTERVALS


def round_size(requested: int, divisions: Sequence[int] = NO_DIVISIONS) -> int:
    """Return the size of the block that serves a request; the block found may be larger and stay so.

    Source:
        `round_size` and `roundup_power2_next_division` in `c10/cuda/CUDACachingAllocator.cpp`.
    """
    if requested < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    exponent = requested.bit_length() - 1
    parts = divisions[min(max(exponent - _FIRST_INTERVAL, 0), NUM_INTERVALS - 1)]
    if parts > 1 and requested > MIN_BLOCK_BYTES * parts:
        step = (1 << exponent) // parts
        return -(-requested // step) * step
    return (requested + MIN_BLOCK_BYTES - 1) & -MIN_BLOCK_BYTES


def recorded_divisions(settings: Mapping[str, Any]) -> tuple[int, ...]:
    """`roundup_power2_divisions` of a snapshot's settings, where the lower end of an interval in MiB is the key."""
    divisions = settings.get("roundup_power2_divisions", {})
    return tuple(divisions.get(str(1 << i), 0) for i in range(NUM_INTERVALS))


def round_sizes(requested: Int64s, divisions: Sequence[int] = NO_DIVISIONS) -> Int64s:
    """`round_size` of many requests below 2**53 bytes [requests]."""
    multiples = np.maximum(-(-requested // MIN_BLOCK_BYTES), 1) * MIN_BLOCK_BYTES
    if not any(divisions):
        return multiples
    exponent = (np.frexp(np.maximum(requested, 1).astype(np.float64))[1] - 1).astype(np.int64)
    parts = np.array(divisions, np.int64)[np.clip(exponent - _FIRST_INTERVAL, 0, NUM_INTERVALS - 1)]
    step = np.maximum((np.int64(1) << exponent) // np.maximum(parts, 1), 1)
    by_power = -(-requested // step) * step
    return np.where((parts > 1) & (requested > MIN_BLOCK_BYTES * parts), by_power, multiples)


def segment_size(size: int, large_segment_size: int = LARGE_SEGMENT_BYTES) -> int:
    """Return the bytes to reserve from the driver for a rounded request that no free block can serve.

    Args:
        large_segment_size: Bytes of a segment for requests above 1 MiB and below 10 MiB.

    Source:
        `get_allocation_size`, same file.
    """
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < OWN_SEGMENT_BYTES:
        return large_segment_size
    return -(-size // SEGMENT_STEP_BYTES) * SEGMENT_STEP_BYTES
