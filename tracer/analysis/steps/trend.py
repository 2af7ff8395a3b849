"""Whether a quantity grows over a run, and by how much a step: noise, stairs and what only fills up told apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.arrays import Floats, Ints, PerSteps
from tracer.arrays import Int as _Int

MIN_ROWS = 24
"""Fewer rows say nothing about a trend."""
_WARM_UP_SHARE, _MIN_WARM_UP_ROWS = 0.1, 3
_NUM_WINDOWS = 8
_MIN_RISES = 3
_LATE_SHARE = 0.25
_TIMES_NOISE = 3
_MAX_POINTS = 256
LEAST_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Trend:
    """Growth that goes on."""

    bytes_per_step: float  # The median of the slopes between all pairs of points
    first_step: int
    last_step: int
    last_bytes: int

    def step_at(self, limit_bytes: int) -> int:
        """The step in which a limit is reached if it goes on like this."""
        return self.last_step + max(0, int((limit_bytes - self.last_bytes) / self.bytes_per_step)) + 1


def find_trend(step: PerSteps[_Int], size_bytes: PerSteps[_Int], *, least_bytes: int = LEAST_BYTES) -> Trend | None:
    """Decide whether a quantity grows from step to step.

    What remains after a warm-up of a tenth is cut into eight windows. It grows if their medians never fall by more than
    the noise around them, rise three times at least, by three times the noise in all, and make a quarter of the whole
    rise in the second half: a cache that fills up and a first evaluation do not. A list that grows once an epoch does.

    Args:
        step: Numbers of steps, rising [J].
        size_bytes: Bytes in each row; rows with -1 are left out [J].
        least_bytes: A smaller rise, over all that is looked at, is none.

    Returns:
        None where it does not grow, or where too little was seen to say so.

    Source:
        The slope is that of Theil and Sen: no single step can move it.
    """
    seen = np.flatnonzero(size_bytes >= 0)
    step, size_bytes = step[seen], size_bytes[seen]
    skipped = max(_MIN_WARM_UP_ROWS, int(len(step) * _WARM_UP_SHARE))
    step, size_bytes = step[skipped:], size_bytes[skipped:]
    if len(step) < MIN_ROWS:
        return None
    medians, noise = _windows(size_bytes)
    rises = np.diff(medians)
    total = medians[-1] - medians[0]
    if (rises < -noise).any() or np.count_nonzero(rises > noise) < _MIN_RISES:
        return None
    if (
        total < max(least_bytes, _TIMES_NOISE * noise)
        or medians[-1] - medians[_NUM_WINDOWS // 2 - 1] < _LATE_SHARE * total
    ):
        return None
    slope = _median_slope(step, size_bytes)
    if slope <= 0:  # a stair that is flat nearly everywhere
        slope = float(total) / float((step[-1] - step[0]) * (_NUM_WINDOWS - 1) / _NUM_WINDOWS)
    return Trend(slope, int(step[0]), int(step[-1]), int(size_bytes[-1]))


def _windows(size_bytes: Ints) -> tuple[Floats, float]:
    """The median of each window, and how far values typically lie from a line through them."""
    parts = np.array_split(size_bytes, _NUM_WINDOWS)
    medians = np.array([np.median(part) for part in parts])
    line = np.interp(np.arange(len(size_bytes)), _middles(parts), medians)
    return medians, float(np.median(np.abs(size_bytes - line)))


def _middles(parts: list[Ints]) -> Floats:
    ends = np.cumsum([len(part) for part in parts])
    return np.array([end - (len(part) + 1) / 2 for end, part in zip(ends, parts, strict=True)])


def _median_slope(step: Ints, size_bytes: Ints) -> float:
    chosen = np.unique(np.linspace(0, len(step) - 1, _MAX_POINTS).astype(np.int64))
    x, y = step[chosen].astype(np.float64), size_bytes[chosen].astype(np.float64)
    first, second = np.triu_indices(len(x), k=1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))
