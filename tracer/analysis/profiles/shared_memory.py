"""Storages that lie in one another: a slice of an array, a tensor within a buffer. Their bytes are there once."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import pairwise

import numpy as np

from tracer.arrays import Ints


def own_bytes(address: Ints, size_bytes: Ints) -> Ints:
    """Return the bytes of each piece of memory that lie in no piece which begins later: together, all bytes once.

    0 to 10, and within it 2 to 4 and 5 to 6: 7, 2, 1. Of pieces that begin at one address, the longer one has the rest.

    Args:
        address: [U] Where each begins.
        size_bytes: [U]
    """
    order = np.lexsort((-size_bytes, address))
    start, stop = address[order], (address + size_bytes)[order]
    if not len(start) or (start[1:] >= np.maximum.accumulate(stop)[:-1]).all():
        return np.asarray(size_bytes, np.int64)
    own, innermost, row = [0] * len(start), list[int](), 0
    begins, ends = start.tolist(), stop.tolist()
    points = sorted({*begins, *ends})
    for point, following in pairwise(points):
        while row < len(begins) and begins[row] == point:
            heappush(innermost, -row)
            row += 1
        while innermost and ends[-innermost[0]] <= point:
            heappop(innermost)
        if innermost:
            own[-innermost[0]] += following - point
    result = np.empty(len(own), np.int64)
    result[order] = own
    return result
