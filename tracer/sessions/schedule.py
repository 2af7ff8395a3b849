"""Which steps of a program are recorded; the first of a program that may make no other, until a second has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.profiler import ProfilerAction

from tracer.capture.ignored_warnings import ignored
from tracer.capture.torch_private import torch_profiler
from tracer.capture.torch_private.torch_graph import running_node
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
        """The same schedule for `torch.profiler.profile`."""
        with ignored("Profiler won't be using warmup"):  # the first step is slower then, which no size depends on
            return torch.profiler.schedule(
                wait=self.num_wait_steps + self._num_steps_apart,
                warmup=self.num_warmup_steps,
                active=self.num_active_steps,
                repeat=self.num_repeats,
                skip_first_wait=self._num_steps_apart,
            )


DEFAULT_SCHEDULE = Schedule()


class FirstStep:
    """A profiler of its own for the first step, and when the next one may begin to record."""

    def __init__(self, make_profiler: Callable[[Callable[[int], ProfilerAction]], Any]) -> None:
        self.profiler: Any = make_profiler(only_the_first)  # Records until `end` is called; None from then on
        self.is_kept = False  # Whether its recording is among the session's cycles
        self._regions = torch_profiler.OpenRegions()

    def __enter__(self) -> None:
        self._regions.start()
        self.profiler.__enter__()

    def end(self, *, is_kept: bool) -> None:
        """Stop recording; what was recorded is given to `on_trace_ready` if it is kept."""
        profiler, self.profiler, self.is_kept = self.profiler, None, is_kept
        if is_kept:
            profiler.step()
        else:
            profiler.on_trace_ready = None
        profiler.__exit__(None, None, None)
        torch_profiler.let_go_of(profiler)

    def when_closed(self, begin: Callable[[], None]) -> None:
        """Call back when every region has closed that was opened since the beginning: at once if none is open.

        A region that was recorded writes its end into its recording, whose memory is free by then, if another one
        records. Inside of backward that is never called: an operator of torch's own is open there.
        """
        if running_node() is None:
            self._regions.when_closed(begin)

    def stop(self) -> None:
        """Call nothing back any more."""
        self._regions.stop()


def only_the_first(step: int) -> ProfilerAction:
    """The schedule of a profiler that records the first step."""
    return ProfilerAction.RECORD_AND_SAVE if step == 0 else ProfilerAction.NONE
