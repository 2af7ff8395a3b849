"""Time that spans cover, counted once where they overlap, in whole nanoseconds."""

from __future__ import annotations

import numpy as np

from tracer.analysis.profiles.time_spans import TimeSpans, merged
from tracer.arrays import Ints


def covered(start: Ints, end: Ints, edges: Ints) -> Ints:
    """Nanoseconds between each edge and the next that some span covers [edges - 1].

    Args:
        start: Start of the spans, in any order.
        end: End of the spans.
        edges: Moments in order.
    """
    starts, ends = merged(start, end)
    if not len(starts):
        return np.zeros(max(len(edges) - 1, 0), np.int64)
    before = np.concatenate([[0], np.cumsum(ends - starts)])
    at = np.searchsorted(starts, edges, side="right")
    last = np.maximum(at - 1, 0)
    # Of the span that an edge lies in, what is behind the edge is not covered by then.
    beyond = np.where(at > 0, np.maximum(ends[last] - edges, 0), 0)
    return np.diff(before[at] - beyond)


def gaps(start: Ints, end: Ints, first_ns: int, last_ns: int) -> TimeSpans:
    """Spans between two moments in which none of the given spans lies.

    Args:
        start: Start of the spans, in any order.
        end: End of the spans.
        first_ns: The first moment.
        last_ns: The last moment.
    """
    starts, ends = merged(start, end)
    inside = (ends > first_ns) & (starts < last_ns)
    begins = np.concatenate([[first_ns], ends[inside]])
    stops = np.concatenate([starts[inside], [last_ns]])
    real = stops > begins
    return begins[real], stops[real]
