"""How the caching allocator rounds a request, for blocks whose real size no snapshot tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracer.arrays import Ints

MIN_BLOCK_BYTES = 512
_FIRST_INTERVAL = 20  # roundup_power2_divisions has one number per power of two from 1 MiB on
_NUM_INTERVALS = 16


def rounded_sizes(requested: Ints, settings: Mapping[str, Any]) -> Ints:
    """The sizes of the blocks that requests are served with.

    A block can be larger still, where the allocator does not split what it found.

    Args:
        requested: Bytes asked for, below 2**53 [requests].
        settings: The snapshot's settings; only `roundup_power2_divisions` matters.

    Source:
        `round_size` and `roundup_power2_next_division` in `c10/cuda/CUDACachingAllocator.cpp`.
    """
    multiples = np.maximum(-(-requested // MIN_BLOCK_BYTES), 1) * MIN_BLOCK_BYTES
    table = _divisions(settings)
    if not table.any():
        return multiples
    exponent = (np.frexp(np.maximum(requested, 1).astype(np.float64))[1] - 1).astype(np.int64)
    divisions = table[np.clip(exponent - _FIRST_INTERVAL, 0, _NUM_INTERVALS - 1)]
    floor = np.int64(1) << exponent
    step = np.maximum(floor >> (np.frexp(np.maximum(divisions, 1).astype(np.float64))[1] - 1).astype(np.int64), 1)
    by_power = np.where(requested == floor, requested, -(-requested // step) * step)
    return np.where((divisions > 1) & (requested > MIN_BLOCK_BYTES * divisions), by_power, multiples)


def _divisions(settings: Mapping[str, Any]) -> Ints:
    """The number of divisions for each interval of sizes; keys are its lower ends in MiB."""
    divisions = settings.get("roundup_power2_divisions", {})
    return np.array([divisions.get(str(1 << i), 0) for i in range(_NUM_INTERVALS)], dtype=np.int64)
