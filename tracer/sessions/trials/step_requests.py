"""What each step of a program asked of the allocators, so that two steps that asked for the same are seen."""

from __future__ import annotations

import numpy as np
import torch

_LEAST_STEPS = 3
MOST_STEPS = 10
"""Of a script whose memory does not repeat."""
# Running totals, whose difference is a step's; the last two are peaks, which nobody else is to find reset.
_TOTALS = ("allocation.all.allocated", "requested_bytes.all.allocated")
_PEAKS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak")
_IN_USE = ("allocated_bytes.all.current",)
_STEPS_OF_GROWTH = 5
"""So many steps in a row have left more than the one before, each about as much, where memory grows."""


class StepRequests:
    """Counters of all devices after each step.

    Attributes:
        have_repeated: Whether the last step asked for what the one before asked for, and no peak has risen.
    """

    def __init__(self) -> None:
        """Before the first step."""
        self.have_repeated = False
        self._after: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._in_use: list[int] = []

    def next(self) -> int:
        """Count a step that has ended; how many have been counted."""
        self._after.append((_counted(_TOTALS), _counted(_PEAKS)))
        self._in_use.append(sum(_counted(_IN_USE)))
        return len(self._after)

    @property
    def num_steps(self) -> int:
        """How many have been counted."""
        return len(self._after)

    @property
    def growth_bytes(self) -> int:
        """By how much more each of the last steps left in use; 0 where some left no more, or far more than others."""
        more = sorted(map(int, np.diff(self._in_use[-_STEPS_OF_GROWTH - 1 :])))
        is_steady = len(more) == _STEPS_OF_GROWTH and 0 < more[-1] <= 2 * more[0]
        return more[len(more) // 2] if is_steady else 0

    def are_enough(self, wanted: int) -> bool:
        """Count a step that has ended; whether no more are wanted.

        Args:
            wanted: A number of steps; 0 for as many as it takes until memory repeats, and no more than `MOST_STEPS`.
        """
        return self.next() >= wanted if wanted else self.repeat(MOST_STEPS)

    def repeat(self, most: int) -> bool:
        """Count a step that has ended; whether memory repeats, or so many steps have been counted."""
        number = self.next()
        if number < _LEAST_STEPS:
            return False
        (first, _), (second, peaks_before), (third, peaks) = self._after[-3:]
        last, before = _difference(third, second), _difference(second, first)
        self.have_repeated = last == before and peaks == peaks_before
        return self.have_repeated or number >= most


def _counted(names: tuple[str, ...]) -> tuple[int, ...]:
    stats = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
    return tuple(of_device.get(name, 0) for of_device in stats for name in names)


def _difference(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(late - early for late, early in zip(after, before, strict=True))
