"""Tries changes: each rehearsed alone, then the best together, and the cheapest set with which a program fits.

advice = advise(build, device="cpu")

What makes the peak worse, or hardly smaller, is never on the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from tracer.allocator.settings import parse_settings
from tracer.analysis.profiles.attribution import attribute
from tracer.analysis.profiles.backward_passes import outermost_calls
from tracer.analysis.profiles.findings import find_in_cycle
from tracer.changes.change import Change, Part, Situation, peak_bytes
from tracer.changes.flops import FlopCount
from tracer.changes.kinds import accumulate, all_kinds, checkpoint
from tracer.changes.recommendation import AdviceReport, Group, Keeps, Measured, Recommendation
from tracer.errors import error_words
from tracer.rehearsal.device_memory import DeviceMemory
from tracer.rehearsal.rehearse import Rehearsal, rehearse
from tracer.workloads.workload import Workload

Build = Callable[[], Workload]
"""Makes the workload anew, with nothing in common with what it made before."""
Device = Literal["cpu", "cuda"]
LEAST_SHARE = 0.01
"""Of the peak: what saves less is not worth a line."""
_NUM_STEPS = 2
_MOST_TOGETHER = 4


@dataclass(frozen=True, slots=True, eq=False)
class RehearsedChanges:
    """Results of rehearsals under some changes."""

    changes: tuple[Change, ...]  # One, or several together
    peak_bytes: int  # The most allocated
    saved_bytes: int  # How much less that is than without
    reserved_bytes: int | None  # The most reserved; None on the CPU, which reserves nothing
    saved_reserved_bytes: int | None  # How much less that is; below zero for more
    flops: int  # Operations of a step
    more_flops: float  # By which share they become more

    @property
    def name(self) -> str:
        """Names of all changes, joined by " + "."""
        return " + ".join(change.name for change in self.changes)

    @property
    def keeps(self) -> Keeps:
        """What all of them leave as it was."""
        return max((change.keeps for change in self.changes), default=Keeps.BITS)

    @property
    def group(self) -> Group:
        """What they give up: the last of their groups."""
        return max((change.group for change in self.changes), default=Group.MEMORY)

    @property
    def is_of_allocator(self) -> bool:
        """Whether they lower what is reserved alone: behind what lowers the peak itself."""
        return all(change.settings for change in self.changes)

    @property
    def needed_bytes(self) -> int:
        """What a device must have: the most reserved, or on the CPU allocated."""
        return self.peak_bytes if self.reserved_bytes is None else self.reserved_bytes

    @property
    def gain_bytes(self) -> int:
        """The smaller of what is saved of either; what is only about the allocator saves reserved memory alone."""
        if self.saved_reserved_bytes is None:
            return self.saved_bytes
        if self.is_of_allocator:
            return self.saved_reserved_bytes
        return self.saved_bytes if self.saved_reserved_bytes >= 0 else min(self.saved_bytes, self.saved_reserved_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class Advice:
    """Changes that would help a program."""

    device: str  # "cpu" or "cuda": whose rules were followed
    base: RehearsedChanges  # The program as it is: an outcome without changes
    # Outcomes of changes alone that save something, by what they give up; within a group the most first.
    outcomes: tuple[RehearsedChanges, ...]
    together: RehearsedChanges | None = None  # The best ones together; None where no two save more than one alone
    target_bytes: int | None = None  # What it should fit into; None where nobody asked
    # The cheapest set with which it fits, without changes where it does as it is; None if nothing that was tried does.
    fit: RehearsedChanges | None = None
    num_tried: int = 0  # How many rehearsals and replays
    not_tried: tuple[tuple[str, str], ...] = ()  # Names of changes that could not be rehearsed, and what was raised

    @property
    def best(self) -> tuple[RehearsedChanges, ...]:
        """The best of each family in each group, in the order of `outcomes`."""
        best: dict[tuple[str, Group], RehearsedChanges] = {}
        for outcome in self.outcomes:
            best.setdefault((outcome.changes[0].family, outcome.group), outcome)
        return tuple(best.values())


def advise(
    build: Build,
    *,
    device: Device,
    target_bytes: int | None = None,
    settings: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
    **options: Any,
) -> Advice:
    """Find what would lower the peak of a training step, by rehearsing it with one change after the other.

    Args:
        settings: Settings of the device's allocator, as in PYTORCH_CUDA_ALLOC_CONF; by default torch's.
    """
    trials = _Trials(build, device, options, settings)
    situation = trials.situation
    changes = candidates(situation)
    for kind in all_kinds():
        if hasattr(kind, "not_tried"):
            trials.not_tried += kind.not_tried(situation)
    for number, change in enumerate(changes):
        trials.outcome((change,))
        progress(number + 1, len(changes))
    alone = [trials.outcome((change,)) for change in changes]
    outcomes = _listed([outcome for outcome in alone if outcome is not None], trials.base)
    advice = Advice(device, trials.base, outcomes, target_bytes=target_bytes)
    together = _together(trials, advice.best)
    fit = None if target_bytes is None else _cheapest(trials, alone, target_bytes)
    return replace(advice, together=together, fit=fit, num_tried=trials.num_tried, not_tried=tuple(trials.not_tried))


def candidates(situation: Situation) -> list[Change]:
    """Return the changes of all kinds that make sense for a program."""
    of_models = [kind for kind in all_kinds() if hasattr(kind, "candidates")]
    return [change for kind in of_models for change in kind.candidates(situation)]


class _Trials:
    """Rehearsals of a program with changes, each set once."""

    def __init__(self, build: Build, device: Device, options: dict[str, Any], settings: str = "") -> None:
        self._build, self._device, self._options, self._settings = build, device, options, settings
        self._outcomes: dict[frozenset[str], RehearsedChanges | None] = {}
        self._rehearsals: dict[frozenset[str], tuple[Rehearsal, int]] = {}
        self.not_tried: list[tuple[str, str]] = []
        self.num_tried = 0
        self.situation = self._look()
        self._base_memory = self._memory(self.situation.rehearsal, ())
        self.base = self._outcome_of((), self.situation.rehearsal, self.situation.flops)

    def _look(self) -> Situation:
        """The program as it is."""
        workload = self._build()
        names = checkpoint.part_names(workload.model)
        count = FlopCount()
        count.follow(workload.model, names)
        batches = _FirstBatch(workload)
        with batches:
            rehearsal = rehearse(
                workload, device=self._device, num_steps=_NUM_STEPS, watch=count.watch, **self._options
            )
        peak = find_in_cycle(rehearsal.recording, known=rehearsal.known, module_names=rehearsal.module_names).peak
        saved = dict.fromkeys(names, 0)
        by_operator: dict[str, int] = {}
        by_place: dict[tuple[str, str], int] = {}
        for row in peak.rows:
            by_operator[row.op or ""] = by_operator.get(row.op or "", 0) + row.bytes
            place = row.op or "", row.module or ""
            by_place[place] = by_place.get(place, 0) + row.bytes
            if row.category == "ACTIVATION" and row.module is not None:
                for name in names:
                    if row.module == name or row.module.startswith(f"{name}."):
                        saved[name] += row.bytes
        parts = [
            Part(name, saved[name], count.by_part[name] // _NUM_STEPS, count.order[name])
            for name in names
            if name in count.order
        ]
        return Situation(
            workload=workload,
            rehearsal=rehearsal,
            device=self._device,
            flops=count.total // _NUM_STEPS,
            parts=sorted(parts, key=lambda part: part.order),
            bytes_by_operator=by_operator,
            bytes_by_place=by_place,
            batch_size=batches.size,
            evaluates_with_gradients=batches.evaluate_with_gradients(rehearsal),
        )

    def outcome(self, changes: Sequence[Change]) -> RehearsedChanges | None:
        """What comes of some changes; None if that could not be rehearsed."""
        key = frozenset(change.name for change in changes)
        if key not in self._outcomes:
            try:
                self._outcomes[key] = self._tried(changes)
            except Exception as error:  # of torch, or of a model that does not bear the change: told in the answer
                self.not_tried.append((" + ".join(change.name for change in changes), error_words(error)))
                self._outcomes[key] = None
        return self._outcomes[key]

    def _tried(self, changes: Sequence[Change]) -> RehearsedChanges:
        rehearsal, flops = self._rehearsed([change for change in changes if not change.settings])
        self.num_tried += 1
        return self._outcome_of(changes, rehearsal, flops)

    def _rehearsed(self, changes: Sequence[Change]) -> tuple[Rehearsal, int]:
        if not changes:
            return self.situation.rehearsal, self.situation.flops
        key = frozenset(change.name for change in changes)
        if key not in self._rehearsals:
            workload, count = applied(self._build(), changes), FlopCount()
            rehearsal = rehearse(
                workload, device=self._device, num_steps=_NUM_STEPS, watch=count.watch, **self._options
            )
            self._rehearsals[key] = rehearsal, count.total // _NUM_STEPS
        return self._rehearsals[key]

    def _memory(self, rehearsal: Rehearsal, changes: Sequence[Change]) -> DeviceMemory:
        """What the allocator makes of it under the settings asked for, and behind them those of the changes."""
        spelled = ",".join(part for part in (self._settings, *(change.settings for change in changes)) if part)
        return rehearsal.on_device(parse_settings(spelled)) if spelled else rehearsal.memory

    def _outcome_of(self, changes: Sequence[Change], rehearsal: Rehearsal, flops: int) -> RehearsedChanges:
        peak, base_peak = peak_bytes(rehearsal), peak_bytes(self.situation.rehearsal)
        reserved = saved_reserved = None
        if self._device == "cuda":
            memory, base = self._memory(rehearsal, changes), self._base_memory
            reserved, peak = memory.peak_reserved_bytes, memory.peak_allocated_bytes
            saved_reserved, base_peak = base.peak_reserved_bytes - reserved, base.peak_allocated_bytes
        return RehearsedChanges(
            changes=tuple(changes),
            peak_bytes=peak,
            saved_bytes=base_peak - peak,
            reserved_bytes=reserved,
            saved_reserved_bytes=saved_reserved,
            flops=flops,
            more_flops=flops / self.situation.flops - 1 if self.situation.flops else 0.0,
        )


def applied(workload: Workload, changes: Iterable[Change]) -> Workload:
    """A freshly built workload with changes made: those of modules before those of the step around them."""
    for change in sorted(changes, key=lambda change: change.stage):
        workload = change.made_to(workload)
    return workload


class _FirstBatch:
    """While entered, notes the size of a workload's batches, and which calls of its model are evaluation."""

    size = 1  # Of the last batch

    def __init__(self, workload: Workload) -> None:
        self._model, self._handle = workload.model, None
        self._evaluates: list[bool] = []

    def __enter__(self) -> None:
        self._handle = self._model.register_forward_pre_hook(self._see, with_kwargs=True)  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            self._handle.remove()  # type: ignore[unreachable]

    def _see(self, module: Any, args: Any, kwargs: Any) -> None:
        self.size = accumulate.batch_size((args, kwargs))
        self._evaluates.append(not module.training and torch.is_grad_enabled())

    def evaluate_with_gradients(self, rehearsal: Rehearsal) -> bool:
        """Whether there are calls in evaluation mode with gradients on, and no backward went back to one.

        Where modules other than the whole model are called too, it is not known which call is which.
        """
        if not any(self._evaluates):
            return False
        calls = outermost_calls(rehearsal.whole, attribute(rehearsal.whole))
        if len(calls.start_ns) != len(self._evaluates):
            return False
        return not bool((calls.went_back & np.array(self._evaluates)).any())


def _listed(outcomes: Iterable[RehearsedChanges], base: RehearsedChanges) -> tuple[RehearsedChanges, ...]:
    """What saves enough, by group, in a group the most first, and last what is only about the allocator.

    Of one family what another one beats in bytes and in cost is left out.
    """
    worth = [outcome for outcome in outcomes if outcome.gain_bytes >= LEAST_SHARE * base.needed_bytes]
    kept = [outcome for outcome in worth if not any(_is_beaten(outcome, other) for other in worth)]
    return tuple(sorted(kept, key=lambda outcome: (outcome.group, outcome.is_of_allocator, -outcome.gain_bytes)))


def _is_beaten(outcome: RehearsedChanges, other: RehearsedChanges) -> bool:
    if other is outcome or other.changes[0].family != outcome.changes[0].family:
        return False
    mine, theirs = _cost(outcome), _cost(other)
    is_as_good = theirs <= mine and other.gain_bytes >= outcome.gain_bytes
    return is_as_good and (theirs, other.gain_bytes) != (mine, outcome.gain_bytes)


def _cost(outcome: RehearsedChanges) -> tuple[int, int, bool, float, int]:
    """Sort key: what is given up before changed results, these before additional operations and lines of code."""
    costs = any(change.cost for change in outcome.changes)
    return (int(outcome.group), int(outcome.keeps), costs, round(outcome.more_flops, 4), len(outcome.changes))


def _together(trials: _Trials, best: Sequence[RehearsedChanges]) -> RehearsedChanges | None:
    """The best of every family, one after the other, as long as each lowers the peak further.

    What changes arithmetic or training is left out: it is for the person to decide.
    """
    safe = sorted(
        (outcome for outcome in best if outcome.group < Group.ARITHMETIC and outcome.keeps < Keeps.CONVERGENCE),
        key=lambda outcome: -outcome.gain_bytes,
    )
    current: RehearsedChanges | None = None
    for outcome in safe[: _MOST_TOGETHER + 2]:
        if current is None:
            current = outcome
            continue
        if len(current.changes) >= _MOST_TOGETHER:
            break
        if not _go_together(current.changes, outcome.changes):
            continue
        further = trials.outcome((*current.changes, *outcome.changes))
        least = LEAST_SHARE * trials.base.needed_bytes
        if further is not None and further.gain_bytes >= current.gain_bytes + least:
            current = further
    return current if current is not None and len(current.changes) > 1 else None


def _go_together(some: Iterable[Change], others: Iterable[Change]) -> bool:
    return not any(
        change.family == other.family or change.family in other.excludes or other.family in change.excludes
        for change in some
        for other in others
    )


def _cheapest(trials: _Trials, alone: Iterable[RehearsedChanges | None], target_bytes: int) -> RehearsedChanges | None:
    """The cheapest set that fits: one change if one suffices, else the cheapest that still helps, one by one.

    What the last one added has made superfluous is taken out again.
    """
    if trials.base.needed_bytes <= target_bytes:
        return trials.base
    useful = [outcome for outcome in alone if outcome is not None and outcome.gain_bytes > 0]
    enough = [outcome for outcome in useful if outcome.needed_bytes <= target_bytes]
    if enough:
        return min(enough, key=lambda outcome: (_cost(outcome), outcome.is_of_allocator))
    current: RehearsedChanges = trials.base
    for outcome in sorted(useful, key=lambda outcome: (_cost(outcome)[:3], -outcome.gain_bytes)):
        # It takes the place of what it cannot stand beside, where that is better.
        others = tuple(change for change in current.changes if _go_together((change,), outcome.changes))
        further = trials.outcome((*others, *outcome.changes))
        if further is None or further.needed_bytes >= current.needed_bytes:
            continue
        current = further
        if current.needed_bytes <= target_bytes:
            return _pruned(trials, current, target_bytes)
    return None


def _pruned(trials: _Trials, outcome: RehearsedChanges, target_bytes: int) -> RehearsedChanges:
    dearest_first = sorted(outcome.changes, key=lambda change: (-change.group, -change.keeps, not change.cost))
    for change in dearest_first:
        less = trials.outcome(tuple(other for other in outcome.changes if other is not change))
        if less is not None and less.needed_bytes <= target_bytes:
            outcome = less
    return outcome


_VISIBLE_SHARE = 0.0005


def report_of(advice: Advice, measured: Mapping[str, Measured] | None = None) -> AdviceReport:
    """Rows of advice."""
    measured = measured or {}

    def told(outcome: RehearsedChanges | None) -> Recommendation | None:
        if outcome is None or not outcome.changes:
            return None
        return _recommendation(outcome, measured.get(outcome.name))

    best = advice.best
    return AdviceReport(
        device=advice.device,
        peak_bytes=advice.base.peak_bytes,
        reserved_bytes=advice.base.reserved_bytes,
        rows=tuple(row for outcome in best if (row := told(outcome))),
        others=tuple(row for outcome in advice.outcomes if outcome not in best and (row := told(outcome))),
        together=told(advice.together),
        target_bytes=advice.target_bytes,
        fits=advice.target_bytes is None or advice.base.needed_bytes <= advice.target_bytes,
        fit=told(advice.fit),
        num_tried=advice.num_tried,
        not_tried=advice.not_tried,
    )


def _recommendation(outcome: RehearsedChanges, measured: Measured | None) -> Recommendation:
    return Recommendation(
        change=outcome.name,
        lines=tuple(line for change in outcome.changes for line in change.lines),
        saves_bytes=outcome.saved_bytes,
        saves_reserved_bytes=outcome.saved_reserved_bytes,
        peak_bytes=outcome.peak_bytes,
        reserved_bytes=outcome.reserved_bytes,
        results=outcome.keeps.words,
        cost=_cost_words(outcome),
        needs=" ".join(dict.fromkeys(change.needs for change in outcome.changes if change.needs)),
        how_found=_how_found(outcome, measured),
        measured=measured,
        group=outcome.group.key,
    )


def _how_found(outcome: RehearsedChanges, measured: Measured | None) -> str:
    if measured is not None:
        return "measured"
    return "replayed" if outcome.is_of_allocator else "rehearsed"


def _cost_words(outcome: RehearsedChanges) -> str:
    """Operations first, then what is not counted."""
    counted = f"{100 * outcome.more_flops:+.1f} % FLOPs" if abs(outcome.more_flops) > _VISIBLE_SHARE else ""
    words = [counted, *(change.cost for change in outcome.changes)]
    return "; ".join(dict.fromkeys(word.rstrip(".") for word in words if word))
