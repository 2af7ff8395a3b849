"""A page of a run whose times mean nothing: everything stands at its position in the order of events instead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tracer.arrays import Ints
from tracer.exporters.page.model import Page


def without_times(page: Page) -> Page:
    """The same page on an axis of events, without durations."""
    drawn = np.maximum.accumulate(page.times) if len(page.times) else page.times

    def positions(times: Ints) -> Ints:
        """The row of each time, the first of those that tie."""
        return np.searchsorted(drawn, times).astype(np.int64)

    def position(time: int) -> int:
        return int(np.searchsorted(drawn, time))

    peak = page.peak
    return replace(
        page,
        axis="entry",
        times=np.arange(len(page.times), dtype=np.int64),
        lines=tuple(replace(line, times=positions(line.times)) for line in page.lines),
        marks=tuple(
            replace(mark, time=mark.row if mark.row is not None else position(mark.time)) for mark in page.marks
        ),
        bands=tuple(replace(band, start=position(band.start), end=position(band.end)) for band in page.bands),
        peak=None if peak is None else replace(peak, time=peak.row),
        timings=(),
        clock="",
        slow_modules=(),
    )
