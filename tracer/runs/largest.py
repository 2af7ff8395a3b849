"""The largest size of something, such as a batch, with which a program fits on a card, by bisection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tracer.errors import TracerError

MOST = 1 << 20
"""That is tried."""
_DIFFERENT_MICRO_BATCHES = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """What was found with one size.

    Attributes:
        fits: Whether every allocation was served.
        allocated_bytes: Peak of the allocated bytes, on a device without a limit.
        reserved_bytes: Peak of the reserved bytes, likewise.
    """

    fits: bool
    allocated_bytes: int
    reserved_bytes: int


Try = Callable[[int], Trial]


def largest_fitting(
    attempt: Try,
    usable_bytes: int,
    start: int,
    *,
    step: int = 1,
    most: int = MOST,
    tell: Callable[[int, Trial], None] = lambda size, trial: None,
) -> int:
    """The largest size that fits; each answer is a trial of that size.

    Args:
        attempt: Tries a size.
        usable_bytes: What the card's allocator can reserve.
        start: The size to begin with.
        step: Sizes that are tried are multiples of it.
        most: The largest size to try.
        tell: Called with every size that was tried.

    Returns:
        0 where not even the smallest fits.

    Raises:
        TracerError: The size changes nothing.
    """
    peaks: dict[int, int] = {}

    def fits(number: int) -> bool:
        trial = attempt(number * step)
        peaks[number] = trial.allocated_bytes
        tell(number * step, trial)
        if len(set(peaks.values())) == 1 and len(peaks) > 1:
            raise TracerError(
                "The size does not change how much memory this needs.",
                hint="Give the factory a parameter batch_size, or --input with the shape of one sample.",
            )
        return trial.fits

    first, last = max(1, start // step), max(1, most // step)
    low, high = (first, 0) if fits(first) else (0, first)
    while not high:
        if low >= last:
            return low * step
        probe = _guess(peaks, usable_bytes) if len(peaks) > 1 else 2 * low
        probe = min(last, max(low + 1, min(probe, 8 * low)))
        low, high = (probe, 0) if fits(probe) else (low, probe)
    while high - low > 1:
        probe = _guess(peaks, usable_bytes) if len(peaks) > 1 else (low + high) // 2
        # By a line through two answers, but never less than a tenth of the way in from either side.
        margin = max(1, (high - low) // 10)
        probe = max(low + margin, min(probe, high - margin))
        low, high = (probe, high) if fits(probe) else (low, probe)
    return low * step


def fitting_micro_batches(
    attempt: Callable[[int, int], Trial], num_samples: int, largest: int
) -> tuple[int, int] | None:
    """The largest micro-batches of one size that together are so many samples and fit; None where none do.

    With them, gradients are there already during a forward pass: what fits as a whole batch may not as a part of one.

    Args:
        attempt: Tries a micro-batch's size and a number of them.
        num_samples: Samples in all micro-batches of a step together.
        largest: Batch that fits.
    """
    for size in range(min(largest, num_samples - 1), 0, -1):
        if num_samples % size == 0:
            # The third micro-batch finds what the second found.
            number = num_samples // size
            if attempt(size, min(number, _DIFFERENT_MICRO_BATCHES)).fits:
                return size, number
    return None


def _guess(peaks: Mapping[int, int], usable_bytes: int) -> int:
    """Size at which a line through the smallest and the largest tried size reaches the capacity."""
    first, last = min(peaks), max(peaks)
    slope = (peaks[last] - peaks[first]) / (last - first)
    return int(first + (usable_bytes - peaks[first]) / slope) if slope > 0 else 2 * last
