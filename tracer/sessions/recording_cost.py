"""End a recording early where it would take much memory: by counts, so that each run of a program has the same one.

torch keeps 3 KB of each event, such as a call or an allocation, until the recording has been read, which takes some
15 us of a processor an event.
"""

from __future__ import annotations

from typing import Final

from tracer.sessions.schedule import Schedule
from tracer.units import some

MOST_EVENTS: Final = 400_000
"""Events of a cycle behind which no other one is recorded. A step of 2,000 modules and their AdamW has 240,000."""
MOST_CALLS: Final = 50
"""Calls of models without gradients in a recorded step: an evaluation has more."""
MOST_BACKWARDS: Final = 50
"""Backward passes without an end of a step, where the ends of steps may not be found."""
_MOST_DROPPED: Final = 3
"""Recordings that are dropped for later ones; a program may do the same in every step."""
_TO_RECORD_MORE: Final = "A schedule that you name, such as with --n-active-steps 3, is recorded whole."


class RecordingCost:
    """Counts of what is recorded. A schedule that somebody asked for is recorded whatever it costs.

    Attributes:
        num_recorded: Whole steps that were recorded.
        num_dropped: Recordings that were dropped within a step.
    """

    def __init__(self, schedule: Schedule) -> None:
        """Begin to count."""
        self._num_steps = schedule.num_active_steps * schedule.num_repeats
        self._may_end_early = schedule.may_end_early
        self.num_recorded = self.num_dropped = self._num_calls = 0

    def begin_step(self) -> None:
        """Begin to count the calls of a step."""
        self._num_calls = 0

    @property
    def may_drop(self) -> bool:
        """True if a recording without a whole step may be dropped for a later one."""
        return self._may_end_early and self.num_recorded == 0 and self.num_dropped < _MOST_DROPPED

    def after_cycle(self, step: int, num_events: int) -> str:
        """Return why recording ends with a cycle, whose last step has this number; empty if it goes on."""
        if not self._may_end_early or num_events <= MOST_EVENTS or self.num_recorded == self._num_steps:
            return ""
        why = f"those have {num_events:,} events, and more would take long to read."
        return self._ended(f"with step {step}", why)

    def has_long_evaluation(self) -> bool:
        """Count a call without gradients in a recorded step; return whether the step is recorded no further."""
        self._num_calls += 1
        is_long = self._may_end_early and self._num_calls > MOST_CALLS
        return is_long and (self.num_recorded > 0 or self.may_drop)

    def within_evaluation(self, step: int) -> str:
        """Return why recording ends within a step that evaluates."""
        return self._ended(f"within step {step}", f"it calls models without gradients more than {MOST_CALLS} times.")

    def _ended(self, where: str, why: str) -> str:
        share = f"with {self.num_recorded} of {some(self._num_steps, 'step')} recorded"
        return f"Recording ended {where}, {share}: {why} {_TO_RECORD_MORE}"
