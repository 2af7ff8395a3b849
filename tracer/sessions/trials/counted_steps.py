"""The first steps of a script, counted: what each asks of the allocators, until two ask for the same; operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from tracer.capture.torch_private.torch_dispatch import watched
from tracer.changes.flops import flops_of
from tracer.rehearsal.recorder import OperatorCall

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


class StepFlops:
    """Counts from when it begins until it ends; a step that does not end has no count.

    Attributes:
        is_on: Whether it counts.
        flops: Of the step; None until it has ended.
    """

    def __init__(self) -> None:
        """Count nothing yet."""
        self.is_on = False
        self.flops: int | None = None
        self._count = 0
        self._mode: Any = watched(self._see)

    def begin(self) -> None:
        """A step begins."""
        self.is_on = True
        self._mode.__enter__()

    def end(self) -> None:
        """It has ended."""
        self.stop()
        self.flops = self._count

    def stop(self) -> None:
        """Count no longer; once is enough."""
        if self.is_on:
            self.is_on = False
            self._mode.__exit__(None, None, None)

    def _see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self._count += flops_of(OperatorCall(name, args, kwargs, out, is_backward=False))


@dataclass(slots=True)
class CountedSteps:
    """Steps of a script that are counted, and nothing more."""

    device: torch.device  # Where what is trained was when its first step began
    num_steps_done: int = 0  # How many have ended
    is_complete: bool = False  # Whether no more are wanted; the script's profile asks its own question
    is_incomplete: bool = False  # Never: it writes nothing

    @classmethod
    def of(cls, models: dict[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> CountedSteps:
        """Steps of these; without parameters they are on the CPU, as all that nobody moved."""
        parameters = [parameter for model in models.values() for parameter in model.parameters()]
        parameters += [item for optimizer in optimizers for group in optimizer.param_groups for item in group["params"]]
        return cls(parameters[0].device if parameters else torch.device("cpu"))

    def __enter__(self) -> Self:
        """There is nothing to switch on."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """There is nothing to switch off."""

    def wait_for_next_step(self) -> None:
        """No-op: nothing is recorded."""

    def abandon(self) -> None:
        """No-op: nothing is switched on."""

    def observe_call(self, module: nn.Module, args: Any) -> None:
        """A call of a model is not looked at."""

    def step(self) -> None:
        """Count a step that has ended."""
        self.num_steps_done += 1
