"""The largest size, such as of a batch, that fits on a card, found by bisection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tracer.errors import TracerError

MOST = 1 << 20
"""That is tried."""
_DIFFERENT_MICRO_BATCHES = 3
_GROWTH = 16
"""At most, from one size that fits to the next: a batch is made in the host's memory, too."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Result with one size."""

    fits: bool  # Whether every allocation was served
    allocated_bytes: int  # Peak of the allocated bytes, on a device without a limit
    reserved_bytes: int  # Peak of the reserved bytes, likewise


Attempt = Callable[[int], Trial]


def largest_fitting(
    attempt: Attempt,
    usable_bytes: int,
    start: int,
    *,
    most: int = MOST,
    tell: Callable[[int, Trial], None] = lambda size, trial: None,
) -> int:
    """The largest size that fits; each answer is a trial of that size.

    Raises:
        TracerError: The size changes nothing.
    """
    trials: dict[int, Trial] = {}

    def fits(number: int) -> bool:
        trials[number] = attempt(number)
        tell(number, trials[number])
        if len({trial.allocated_bytes for trial in trials.values()}) == 1 and max(trials) >= _GROWTH * min(trials):
            raise TracerError(
                "The size does not change how much memory this needs.",
                hint="Give the factory a parameter batch_size, or --input with the shape of one sample.",
            )
        return trials[number].fits

    low, high = (start, 0) if fits(start) else (0, start)
    margin = 1  # doubled where a guess is not the answer: the search ends as fast as by halves
    while high - low > 1 or (not high and low < most):
        guess = _guess(trials, low, high, usable_bytes)
        end = high or min(most, _GROWTH * low) + 1
        limit = min(margin, (end - low) // 2)
        probe = max(low + limit, min(guess, end - limit))
        margin *= 1 if low + limit < probe < end - limit else 2
        low, high = (probe, high) if fits(probe) else (low, probe)
    return low


def fitting_micro_batches(
    attempt: Callable[[int, int], Trial], num_samples: int, largest: int
) -> tuple[int, int] | None:
    """The largest micro-batches of one size that together are so many samples and fit; None where none do.

    With them, gradients are there already during a forward pass: what fits as a whole batch may not as a part of one.
    """
    for size in range(min(largest, num_samples - 1), 0, -1):
        if num_samples % size == 0:
            # The third micro-batch finds what the second found.
            number = num_samples // size
            if attempt(size, min(number, _DIFFERENT_MICRO_BATCHES)).fits:
                return size, number
    return None


def _guess(trials: Mapping[int, Trial], low: int, high: int, usable_bytes: int) -> int:
    """Size at which a line through two tried sizes, by what they reserved, reaches the capacity; 0 is no bound.

    What is reserved is more than what is allocated, and fits without giving back a cache.
    """
    sizes = sorted(trials)
    if len(sizes) < 2:
        return 2 * low or high // 2
    first, last = (low, high) if low and high else (sizes[0], sizes[1]) if high else (sizes[-2], sizes[-1])
    reserved_bytes, more_bytes = trials[first].reserved_bytes, trials[last].reserved_bytes
    if more_bytes <= reserved_bytes:
        return (low + high) // 2 if high else _GROWTH * low
    guess = int(first + (usable_bytes - reserved_bytes) * (last - first) / (more_bytes - reserved_bytes))
    return guess if low else min(guess, high // 2)
