"""The most that each group of blocks had in use at once, whenever that was."""

from __future__ import annotations

import numpy as np

from tracer.arrays import Ints
from tracer.snapshot.replay import Lives


def own_peaks(lives: Lives, group: Ints, num_groups: int) -> Ints:
    """Largest sum of requested bytes in use at one moment, of each group [num_groups].

    Args:
        lives: Lives of one device.
        group: The group of each block, from 0 [lives].
        num_groups: Number of groups.
    """
    groups = np.concatenate([group, group])
    entry = np.concatenate([lives.begin, lives.end])
    change = np.concatenate([lives.requested_bytes, -lives.requested_bytes])
    # Frees before allocations of the same entry. Every block is freed in this list, so that each group begins at 0.
    order = np.lexsort((change, entry, groups))
    in_use = np.cumsum(change[order])
    peaks = np.zeros(num_groups, dtype=np.int64)
    if len(order):
        start = np.flatnonzero(np.diff(groups[order], prepend=-1))
        peaks[groups[order][start]] = np.maximum.reduceat(in_use, start)
    return peaks
