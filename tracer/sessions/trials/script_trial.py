"""Trial of a script on the null GPU: if it fits, and its peak, from first steps until two ask for the same memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tracer.answers.null_run import USE_CUDA, elsewhere
from tracer.answers.prediction import Sizes
from tracer.capture.device.host_memory import pinned_peak_bytes
from tracer.capture.torch_private.torch_dispatch import watched
from tracer.capture.torch_private.torch_modules import leave_unfilled
from tracer.changes.flops import flops_of
from tracer.errors import TracerError
from tracer.sessions.script_run import ScriptProfile
from tracer.sessions.script_sessions import CountedSteps
from tracer.sessions.trials.use_watch import UseWatch

_QUICK_BYTES = 1 << 20
"""Weights of less are filled in no time."""
_LEAST_STEPS = 3
_MOST_FURTHER_STEPS = 20
"""Steps that are run behind the counted ones to come to a failure that is followed."""
MOST_STEPS = 10
"""Steps that are counted of a script whose memory does not repeat."""
# Running totals, whose difference is a step's; the last two are peaks, which nobody else is to find reset.
_TOTALS = ("allocation.all.allocated", "requested_bytes.all.allocated")
_PEAKS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak")
_IN_USE = ("allocated_bytes.all.current",)
_STEPS_OF_GROWTH = 5
"""So many steps in a row have left more than the one before, each about as much, where memory grows."""


class StepRequests:
    """Counters of all devices after each step."""

    def __init__(self) -> None:
        # Whether the last step asked for what the one before asked for, and no peak has risen
        self.have_repeated = False
        self._after: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._in_use: list[int] = []

    @property
    def num_steps(self) -> int:
        """Number of steps that have been counted."""
        return len(self._after)

    @property
    def growth_bytes(self) -> int:
        """Bytes that each of the last steps left in use; 0 where some left none, or far more than others."""
        more = sorted(map(int, np.diff(self._in_use[-_STEPS_OF_GROWTH - 1 :])))
        is_steady = len(more) == _STEPS_OF_GROWTH and 0 < more[-1] <= 2 * more[0]
        return more[len(more) // 2] if is_steady else 0

    def are_enough(self) -> bool:
        """Count a step that has ended; True when memory has repeated, or after `MOST_STEPS`."""
        self._after.append((_counted(_TOTALS), _counted(_PEAKS)))
        self._in_use.append(sum(_counted(_IN_USE)))
        if self.num_steps < _LEAST_STEPS:
            return False
        (first, _), (second, peaks_before), (third, peaks) = self._after[-3:]
        last, before = _difference(third, second), _difference(second, first)
        self.have_repeated = last == before and peaks == peaks_before
        return self.have_repeated or self.num_steps >= MOST_STEPS


def _counted(names: tuple[str, ...]) -> tuple[int, ...]:
    stats = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
    return tuple(of_device.get(name, 0) for of_device in stats for name in names)


def _difference(after: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(late - early for late, early in zip(after, before, strict=True))


class StepFlops:
    """Counts from when it begins until it ends; a step that does not end has no count."""

    def __init__(self) -> None:
        self.is_on = False  # Whether it counts
        self.flops: int | None = None  # Of the step; None until it has ended
        self._count = 0
        self._mode: Any = watched(self._see)

    def begin(self) -> None:
        """Begin a step."""
        self.is_on = True
        self._mode.__enter__()

    def end(self) -> None:
        """End the step, and keep its count."""
        self.stop()
        self.flops = self._count

    def stop(self) -> None:
        """Count no longer; once is enough."""
        if self.is_on:
            self.is_on = False
            self._mode.__exit__(None, None, None)

    def _see(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        self._count += flops_of(name, args, kwargs, out)


def fullest_sizes() -> Sizes:
    """The peaks of the device of this process that was filled most."""
    peaks = [sizes_of(f"cuda:{device}") for device in range(torch.cuda.device_count())]
    return max(peaks, key=lambda sizes: (sizes.peak_reserved_bytes, sizes.peak_allocated_bytes))


def sizes_of(device: str) -> Sizes:
    """Return the peaks of a device's counters."""
    counters = torch.cuda.memory_stats(torch.device(device))
    return Sizes(
        peak_allocated_bytes=counters.get("allocated_bytes.all.peak", 0),
        peak_requested_bytes=counters.get("requested_bytes.all.peak", 0),
        peak_reserved_bytes=counters.get("reserved_bytes.all.peak", 0),
        num_retries=counters.get("num_alloc_retries", 0),
    )


@dataclass(frozen=True, slots=True)
class ScriptSizes:
    """Memory that the first steps of a script took."""

    sizes: Sizes  # The peaks of the device that was filled most
    # Allocated when the first step began, or the peak before the first call of a module if that is higher: what an
    # evaluation before the first step takes is not counted. None if no step has begun.
    built_bytes: int | None
    has_fit: bool  # Whether all steps that were wanted have run; what comes behind them is for the operations alone
    num_steps: int  # How many have ended
    growth_bytes: int  # By how much more each of the last ones left in use; 0 where memory does not grow
    flops: int | None  # Floating point operations of a step; None where it is not known
    pinned_bytes: int = 0  # Most host memory that was pinned at once
    is_cut: bool = False  # Whether steps were left out, since one had allocated more than there is room for


class _FirstSteps:
    """Counts a script's steps until its memory repeats, then what else is asked for, such as its operations."""

    def __init__(
        self,
        at_growth: Callable[[], None],
        at_end: Callable[[], None] | None,
        uses: UseWatch | None,
        room_bytes: Callable[[], int],
    ) -> None:
        self._at_growth, self._at_end, self._uses, self._room_bytes = at_growth, at_end, uses, room_bytes
        self.is_cut = False  # Whether a step allocated more than there is room for
        self.steps, self.flops = StepRequests(), StepFlops()
        self.peak: Sizes | None = None  # When memory had repeated: what counting takes is no part of it
        self.built_bytes: int | None = None  # See `ScriptSizes`
        self._before_call_bytes = 0

    def begins(self, models: dict[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> CountedSteps:
        if self.built_bytes is None:
            self.built_bytes = max(self._before_call_bytes, *_counted(_IN_USE))
        return CountedSteps.of(models, optimizers)

    def is_called(self) -> None:
        self._before_call_bytes = fullest_sizes().peak_allocated_bytes

    def is_enough(self) -> bool:
        if self.flops.is_on:
            self.flops.end()
            return True
        is_followed = self._uses is not None and self._uses.step_ended()
        if self.peak is not None:
            return not is_followed
        if not self.steps.are_enough():
            self.is_cut = fullest_sizes().peak_allocated_bytes > self._room_bytes()
            if not self.is_cut:
                return False
        self.peak = fullest_sizes()
        if self.steps.growth_bytes:
            self._at_growth()
        if self._at_end is not None:
            self._at_end()
            return True
        if self._uses is not None:
            return not (is_followed and self._uses.is_reached_in(_MOST_FURTHER_STEPS))
        if self.peak.peak_reserved_bytes <= self._room_bytes():
            self.flops.begin()
        return not self.flops.is_on


def script_sizes(
    run: Callable[[ScriptProfile], bool],
    *,
    at_growth: Callable[[], None] = lambda: None,
    at_end: Callable[[], None] | None = None,
    uses: UseWatch | None = None,
    room_bytes: Callable[[], int] = lambda: sys.maxsize,
) -> ScriptSizes | None:
    """Run a script until its memory repeats, or has run out, and a step further to count its operations.

    Large weights that it initializes on the host are left unwritten, which is most of the time that a large model takes
    to begin.

    Args:
        run: Runs it under the profile that it is given, and says whether it came to its end.
        at_growth: Called when so many steps have run, if each left more in use than the one before.
        at_end: Called when memory has repeated, in place of counting operations.
        uses: Told of each step's end, in place of counting operations; further steps run until it has seen enough. A
            program without steps counts as a whole then.
        room_bytes: Asked after each step: one that has allocated more is the last, and where more is reserved no
            operations are counted.

    Returns:
        What was counted; None if no step was found in it.
    """
    first = _FirstSteps(at_growth, at_end, uses, room_bytes)
    profile = ScriptProfile(first.begins, is_enough=first.is_enough, at_first_call=first.is_called)
    fill_again = leave_unfilled(
        lambda tensor: tensor.device.type == "cpu" and tensor.is_floating_point() and tensor.nbytes >= _QUICK_BYTES
    )
    try:
        succeeded = run(profile)
    finally:
        first.flops.stop()
        fill_again()
    session = profile.session
    has_steps = session is not None and session.num_steps_done > 0
    if succeeded and uses is None and not has_steps:
        return None
    peak = first.peak or fullest_sizes()
    if session is not None and not peak.peak_allocated_bytes and (reason := elsewhere(str(session.device))):
        raise TracerError(reason, hint=USE_CUDA)
    return ScriptSizes(
        peak,
        first.built_bytes,
        has_fit=succeeded or first.peak is not None,
        num_steps=first.steps.num_steps,
        # A script that has ended by itself grows no more.
        growth_bytes=first.steps.growth_bytes if first.peak is not None else 0,
        flops=first.flops.flops,
        pinned_bytes=pinned_peak_bytes(),
        is_cut=first.is_cut,
    )
