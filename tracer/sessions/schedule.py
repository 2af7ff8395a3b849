"""The steps of a program that are recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tracer.capture.ignored_warnings import ignored
from tracer.errors import UsageError


@dataclass(frozen=True, slots=True)
class Schedule:
    """Numbers of steps: `repeats` cycles of wait, warmup and active steps."""

    num_wait_steps: int = 1
    num_warmup_steps: int = 1
    num_active_steps: int = 3
    num_repeats: int = 2
    # Whether a step that is not recorded separates cycles even without wait and warmup. It has to where steps end
    # inside an operator, as in an optimizer's own hook: what is open when a recording ends writes, at its own end, into
    # that recording's freed memory once the next has begun.
    is_apart: bool = field(default=False, kw_only=True)
    # Whether recording may end before all of it is recorded, where steps cost much: if the program chose the numbers,
    # and no user did.
    may_end_early: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.num_wait_steps < 0 or self.num_warmup_steps < 0:
            raise UsageError("The numbers of wait and warmup steps cannot be negative.", hint="Use 0 or more.")
        if self.num_active_steps < 1 or self.num_repeats < 1:
            raise UsageError("A run needs at least 1 active step and 1 repeat.", hint="Use 1 or more.")

    @property
    def num_steps(self) -> int:
        """Steps of a whole run: all cycles, and one more, so that the last one is complete whatever torch's version."""
        cycle = self.num_wait_steps + self.num_warmup_steps + self.num_active_steps
        return self.num_repeats * cycle + (self.num_repeats - 1) * self._num_steps_apart + 1

    @property
    def _num_steps_apart(self) -> int:
        return int(self.is_apart and self.num_wait_steps == self.num_warmup_steps == 0)

    def for_torch(self) -> Any:
        """Return the schedule for `torch.profiler.profile`."""
        with ignored("Profiler won't be using warmup"):  # the first step is slower then, which no size depends on
            return torch.profiler.schedule(
                wait=self.num_wait_steps + self._num_steps_apart,
                warmup=self.num_warmup_steps,
                active=self.num_active_steps,
                repeat=self.num_repeats,
                skip_first_wait=self._num_steps_apart,
            )


DEFAULT_SCHEDULE = Schedule()
