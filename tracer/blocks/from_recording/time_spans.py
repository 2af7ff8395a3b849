"""Stretches of time, and which of them a moment lies in."""

from __future__ import annotations

import numpy as np

from tracer.arrays import Ints

TimeSpans = tuple[Ints, Ints]  # Starts and ends, in order


def merged(start: Ints, end: Ints) -> TimeSpans:
    """Spans in order, those that overlap made one."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order]) if len(end) else end
    apart = np.ones(len(start), bool)
    apart[1:] = start[1:] > end[:-1]
    first = np.flatnonzero(apart)
    last = np.append(first[1:], len(start)) - 1
    return start[first], end[last] if len(first) else end


def enclosing(start: Ints, end: Ints, times_ns: Ints) -> Ints:
    """Index of the span that encloses each time, -1 where none does; spans are in order and do not overlap."""
    if not len(start):
        return np.full(len(times_ns), -1, np.int64)
    at = np.searchsorted(start, times_ns, side="right") - 1
    return np.where((at >= 0) & (times_ns < end[at]), at, -1).astype(np.int64)
