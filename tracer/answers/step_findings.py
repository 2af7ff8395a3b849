"""Findings of the counters of a long run: growth and its end, and reserved memory in pieces.

A trend is told from noise, stairs and what only fills up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.arrays import Floats, Int, Ints, PerSteps
from tracer.capture.step_columns import StepColumns

MIN_ROWS = 24  # Fewer rows say nothing about a trend
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


def find_trend(step: PerSteps[Int], size_bytes: PerSteps[Int], *, least_bytes: int = LEAST_BYTES) -> Trend | None:
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
    chosen = np.unique(np.linspace(0, len(step) - 1, _MAX_POINTS).astype(np.int64))
    x, y = step[chosen].astype(np.float64), size_bytes[chosen].astype(np.float64)
    first, second = np.triu_indices(len(x), k=1)
    slope = float(np.median((y[second] - y[first]) / (x[second] - x[first])))
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


LEAST_RESIDENT_BYTES: Final = 48 << 20
"""Resident memory rises a little in any process, and by as much as the recorder's own history."""


@dataclass(frozen=True, slots=True)
class GrowthOverSteps:
    """Growth of the memory in use at the ends of steps."""

    trend: Trend
    limit_bytes: int | None  # Memory that this process can have; None where it is unknown
    end_step: int | None  # The step in which it ends if it goes on; None without a limit
    is_at_latest: bool = False  # Peaks within these steps are not known, an earlier one was higher


@dataclass(frozen=True, slots=True)
class Fragmenting:
    """Growth of the reserved memory, while the memory in use does not grow."""

    trend: Trend
    in_use_bytes: int  # The most that was seen in use at the end


@dataclass(frozen=True, slots=True)
class StepFindings:
    """Findings of a run's counters; None is nothing to say."""

    num_steps: int
    growth: GrowthOverSteps | None = None  # Growth of the bytes in use at ends of steps
    fragmenting: Fragmenting | None = None  # Reserved memory grows alone
    num_retries: int = 0  # Requests for which the cache was emptied during the run


def explain_steps(columns: StepColumns, *, limit_bytes: int | None, has_allocator: bool = True) -> StepFindings:
    """Say what a run's counters show.

    Args:
        limit_bytes: What this process can have on the device, or of the host where there is no device.
        has_allocator: Whether what is in use is an allocator's count, and not resident memory.
    """
    if not len(columns):
        return StepFindings(0)
    num_steps = int(columns.step[-1])
    growth = _growth(columns, limit_bytes, LEAST_BYTES if has_allocator else LEAST_RESIDENT_BYTES)
    if not has_allocator:
        return StepFindings(num_steps, growth=growth)
    retries = columns.num_retries[columns.num_retries >= 0]
    return StepFindings(
        num_steps,
        growth=growth,
        fragmenting=_fragmenting(columns) if growth is None else None,
        num_retries=int(retries[-1] - retries[0]) if len(retries) else 0,
    )


def _growth(columns: StepColumns, limit_bytes: int | None, least_bytes: int) -> GrowthOverSteps | None:
    trend = find_trend(columns.step, columns.end_bytes, least_bytes=least_bytes)
    if trend is None:
        return None
    if limit_bytes is None:
        return GrowthOverSteps(trend, None, None)
    # A step's peak lies so far above its end: of the steps in the later half with a new peak, since that of long ago
    # says nothing of these.
    late = columns.step > (trend.first_step + trend.last_step) // 2
    late &= np.diff(columns.peak_bytes, prepend=columns.peak_bytes[:1]) > 0
    above = max(0, int(np.median((columns.peak_bytes - columns.end_bytes)[late]))) if late.any() else None
    return GrowthOverSteps(trend, limit_bytes, trend.step_at(limit_bytes - (above or 0)), is_at_latest=above is None)


def _fragmenting(columns: StepColumns) -> Fragmenting | None:
    reserved = find_trend(columns.step, columns.reserved_bytes)
    if reserved is None or find_trend(columns.step, columns.peak_bytes) is not None:
        return None
    return Fragmenting(reserved, int(columns.peak_bytes[-1]))
