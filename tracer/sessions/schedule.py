"""Which steps of a program are recorded, and when recording ends early: where steps contain too much.

The first step of a program that may make no other is recorded by itself, and forgotten when a second one has ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.profiler import ProfilerAction

from tracer.capture.ignored_warnings import ignored
from tracer.capture.torch_private import torch_profiler
from tracer.capture.torch_private.torch_graph import running_node
from tracer.errors import UsageError
from tracer.units import some


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


MOST_S: Final = 0.5
"""Time of a processor that recording may add to a step. Reading and analysing a recording takes about ten times what
recording has added, which is 5 seconds a step."""
MOST_READING_S: Final = 5.0
"""Time of a processor for reading a cycle, behind which no other one is recorded."""
MOST_EVENTS: Final = 400_000
"""Events that are recorded in all: torch keeps each until its cycle is read, and each takes some 15 us of a processor
until it is in the files. A step of 2,000 modules and their AdamW has 240,000."""
_MOST_SHARE: Final = 0.5
"""Share of a step's own time that recording may add: steps differ by as much anyway."""
_NUM_STEPS_TO_BEGIN: Final = 1  # slower than all others, unless it is the only one that is not recorded
_MOST_WITHOUT_GRADIENTS_S: Final = 1.0
_MOST_ENDLESS_S: Final = 5.0
_MOST_ENDLESS_ASKED_S: Final = 60.0
"""Limit for a schedule that the user chose: a step may take long, but a program without steps never ends one."""
_MOST_MODULES: Final = 100
"""Python modules that a recorded step may load: a package with a thousand makes four million calls of functions."""
_MOST_DROPPED: Final = 3
"""Recordings that are dropped for later ones; a program may do the same in every step."""

_TO_RECORD_MORE: Final = "A schedule that you name, such as with --n-active-steps 3, is recorded whole."


class RecordingCost:
    """Compares the processor's time of recorded steps with that of steps before, our own work left out.

    A schedule that somebody asked for is recorded whatever it costs: one cycle of it is in memory at a time.
    """

    def __init__(self, schedule: Schedule) -> None:
        """Begin to count."""
        self.note = self._dropped_since = ""
        self._num_steps = schedule.num_active_steps * schedule.num_repeats
        self._may_end_early = schedule.may_end_early
        self._step = 0  # The step that has ended last, the first being 1
        self._plain_s: list[float] = []
        self._num_recorded = self._num_dropped = self._num_read = self._num_events = 0
        self._events_a_step = 0
        self._without_gradients_since_s: float | None = None
        self.begin_step()
        self.begin_reading()

    def begin_step(self) -> None:
        """Note that the program goes on."""
        self._began_s = time.process_time()
        self._without_gradients_since_s = None
        self._num_modules = 0

    def end_step(self, step: int, *, is_recorded: bool) -> bool:
        """Return whether the step that has ended was recorded and cost too much.

        Args:
            step: Its number; the program's first step is 1.
        """
        self._step = step
        took_s = time.process_time() - self._began_s
        if not is_recorded:
            self._plain_s.append(took_s)
            return False
        self._num_recorded += 1
        if self._has_many_events():
            return True
        plain_s = min(self._plain_s[_NUM_STEPS_TO_BEGIN:] or self._plain_s, default=took_s)
        if not self._may_end_early or took_s - plain_s <= max(MOST_S, _MOST_SHARE * plain_s):
            return False
        return self._ended(
            f"with step {step}",
            f"it took {took_s:.1f} s of a processor, and a step that is not recorded {plain_s:.1f} s. Reading takes "
            "some ten times the difference.",
        )

    def begin_reading(self) -> None:
        """Note that a cycle may end."""
        self._reading_since_s = time.process_time()

    def is_reading_long(self) -> bool:
        """Return whether the cycle that was read took so long, or is so large, that no other one is recorded."""
        if self._has_many_events():
            return True
        took_s = time.process_time() - self._reading_since_s
        if not self._may_end_early or took_s <= MOST_READING_S:
            return False
        return self._ended(
            f"with step {self._step}",
            f"reading them took {took_s:.0f} s of a processor, and after more than {MOST_READING_S:.0f} s no other "
            "cycle is recorded.",
        )

    def has_read(self, num_events: int) -> None:
        """Note how many events the first step, or a cycle, has."""
        num_steps = self._num_recorded - self._num_read
        self._num_read = self._num_recorded
        self._num_events += num_events
        self._events_a_step = num_events // max(num_steps, 1)

    def _has_many_events(self) -> bool:
        """Whether another step would be too much to read, by what was read so far."""
        num_unread = self._num_recorded - self._num_read + 1
        if not self._may_end_early or self._num_recorded >= self._num_steps:
            return False
        if self._num_events + num_unread * self._events_a_step <= MOST_EVENTS:
            return False
        return self._ended(
            f"with step {self._step}",
            f"a step has {self._events_a_step:,} events, and more than {MOST_EVENTS:,} in all would take long to read.",
        )

    def _ended(self, where: str, why: str) -> bool:
        """Note that recording has ended, and how much of the schedule is recorded; return True."""
        share = f"with {self._num_recorded} of {some(self._num_steps, 'step')} recorded"
        self.note = f"Recording ended {where}, {share}: {why} {_TO_RECORD_MORE}"
        return True

    @property
    def has_step(self) -> bool:
        """Whether a whole step was recorded."""
        return self._num_recorded > 0

    def is_long_evaluation(self) -> bool:
        """Return whether models were called without gradients for too long; asked at such calls in recorded steps.

        The recording then ends, or is dropped for a later one where it has no whole step.
        """
        now_s = time.process_time()
        self._without_gradients_since_s = self._without_gradients_since_s or now_s
        took_s = now_s - self._without_gradients_since_s
        is_long = self._may_end_early and took_s > _MOST_WITHOUT_GRADIENTS_S
        return is_long and self._ends_within_step(
            f"calls models without gradients for more than {_MOST_WITHOUT_GRADIENTS_S:.0f} s of a processor"
        )

    def is_endless(self) -> bool:
        """Return whether a step has not ended for too long; asked where the ends of steps may not be found."""
        most_s = _MOST_ENDLESS_S if self._may_end_early else _MOST_ENDLESS_ASKED_S
        if self.has_step or time.process_time() - self._began_s <= most_s:
            return False
        self.note = (
            f"No end of a step was found within {most_s:.0f} s of a processor. Recording ended there: what "
            "is explained is the program until then."
        )
        return True

    def loads_many(self) -> bool:
        """Return whether too many Python modules are loaded; asked at each in recorded steps."""
        self._num_modules += 1
        are_many = self._may_end_early and self._num_modules > _MOST_MODULES
        return are_many and self._ends_within_step(f"loads more than {_MOST_MODULES} Python modules")

    def only_dropped(self) -> None:
        """Note that no step was recorded but the one whose recording was dropped last."""
        self.note = (
            f"The only step that was recorded {self._dropped_since}. Recording ended there: what is explained is the "
            "step until then."
        )

    def _ends_within_step(self, does: str) -> bool:
        if self.has_step:
            step = f"step {self._step + 1}"
            return self._ended(f"within {step}", f"{step} {does}.")
        self._num_dropped += 1
        self._dropped_since = does
        return self._num_dropped <= _MOST_DROPPED
