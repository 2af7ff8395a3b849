"""End a recording early where steps contain too much: a recording takes time and memory beside the program's own."""

from __future__ import annotations

import time
from typing import Final

from tracer.sessions.schedule import Schedule
from tracer.units import some

MOST_S: Final = 0.5
"""Time of a processor that recording may add to a step. Reading and analysing a recording takes about ten times what
recording has added, which is 5 seconds a step."""
MOST_READING_S: Final = 5.0
"""Time of a processor for reading a cycle, behind which no other one is recorded."""
MOST_EVENTS: Final = 400_000
"""Events that are recorded in all: torch keeps each until its cycle is read, and each takes some 15 us of a processor
until it is in the files. A step of 1,000 linear layers and their AdamW on the CPU has 221,000."""
MOST_UPDATES: Final = 1_000
"""Parameters that an optimizer may update one after the other, as on the CPU, to be recorded whole: each has some 80
events, which are three quarters of a step's."""
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

    def __init__(self, schedule: Schedule, *, num_updates: int = 0) -> None:
        """Begin to count; an optimizer updates so many parameters one after the other."""
        self._num_updates = num_updates
        self._is_whole = self._is_first_thin = False
        self._ended_by = self._dropped_since = self._only_dropped = ""
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

    @property
    def is_of_many(self) -> bool:
        """True if one step is recorded, and allocations alone of its optimizer, or of a first step without a second."""
        return self._may_end_early and self._num_updates > MOST_UPDATES and not self._is_whole

    def record_whole(self) -> None:
        """Note that optimizers' steps have to be recorded: they train, by a closure, or something is compiled."""
        self._is_whole = True

    def has_allocations_alone(self) -> None:
        """Note that the first step was recorded so."""
        self._is_first_thin = True

    @property
    def has_ended(self) -> bool:
        """True if recording has ended early, and no further step is recorded."""
        return bool(self._ended_by)

    @property
    def note(self) -> str:
        """A sentence on a recording that has ended early; empty where none has."""
        if self._is_first_thin and not self._num_recorded:
            return f"Of the first step allocations alone are recorded: {self._many}. {_TO_RECORD_MORE}"
        return self._only_dropped or self._ended_by

    @property
    def _many(self) -> str:
        many = f"the optimizer updates {self._num_updates:,} parameters"
        return f"{many}, and more than {MOST_UPDATES:,} one after the other take long to read"

    def end_step(self, step: int, *, is_recorded: bool) -> None:
        """Note a step that has ended, the first being 1; recording ends if it was recorded and cost too much."""
        self._step = step
        took_s = time.process_time() - self._began_s
        if not is_recorded:
            self._plain_s.append(took_s)
            return
        self._num_recorded += 1
        plain_s = min(self._plain_s[_NUM_STEPS_TO_BEGIN:] or self._plain_s, default=took_s)
        is_costly = self._may_end_early and took_s - plain_s > max(MOST_S, _MOST_SHARE * plain_s)
        if self.is_of_many:
            self._end(f"with step {step}", f"{self._many}. Of what it does allocations alone are recorded.")
        elif not self._ends_by_events() and is_costly:
            self._end(
                f"with step {step}",
                f"it took {took_s:.1f} s of a processor, and a step that is not recorded {plain_s:.1f} s. "
                "Reading takes some ten times the difference.",
            )

    def begin_reading(self) -> None:
        """Note that a cycle may end."""
        self._reading_since_s = time.process_time()

    def end_reading(self) -> None:
        """Note that a cycle was read; recording ends if that took long, or if another one would be too much."""
        took_s = time.process_time() - self._reading_since_s
        if not self._ends_by_events() and self._may_end_early and took_s > MOST_READING_S:
            self._end(
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

    def _ends_by_events(self) -> bool:
        """End recording if another step would be too much to read, by what was read so far; return whether it is."""
        num_unread = self._num_recorded - self._num_read + 1
        if not self._may_end_early or self._num_recorded >= self._num_steps:
            return False
        if self._num_events + num_unread * self._events_a_step <= MOST_EVENTS:
            return False
        self._end(
            f"with step {self._step}",
            f"a step has {self._events_a_step:,} events, and more than {MOST_EVENTS:,} in all would take long to read.",
        )
        return True

    def _end(self, where: str, why: str) -> None:
        """Note that recording ends, and how much of the schedule is recorded."""
        share = f"with {self._num_recorded} of {some(self._num_steps, 'step')} recorded"
        self._ended_by = f"Recording ended {where}, {share}: {why} {_TO_RECORD_MORE}"

    @property
    def has_step(self) -> bool:
        """True if a whole step was recorded."""
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
        self._ended_by = (
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
        self._only_dropped = (
            f"The only step that was recorded {self._dropped_since}. Recording ended there: what is explained is the "
            "step until then."
        )

    def _ends_within_step(self, does: str) -> bool:
        if self.has_step:
            step = f"step {self._step + 1}"
            self._end(f"within {step}", f"{step} {does}.")
            return True
        self._num_dropped += 1
        self._dropped_since = does
        return self._num_dropped <= _MOST_DROPPED
