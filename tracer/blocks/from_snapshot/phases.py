"""Optimizer steps, zero_grad calls and backward passes as stretches of entries, by annotations or by stacks."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from tracer.arrays import Bools, Ints
from tracer.blocks.from_snapshot.stack_facts import Fact, calls_backward, has
from tracer.snapshot.columns import DeviceState, Snapshot

FAR: Final = np.iinfo(np.int64).max


class Stretches(NamedTuple):
    """Stretches of one kind, as ranges of entries [stretches]."""

    start: Ints  # First entry of each, ascending
    end: Ints  # The entry from which on it is over; beyond the trace if the recording ends in it

    def containing(self, entry: Ints) -> Ints:
        """The stretch that each entry lies in, or -1."""
        stretch = np.searchsorted(self.start, entry, side="right") - 1
        if not len(self.start):
            return stretch
        return np.where((stretch >= 0) & (entry < self.end[np.maximum(stretch, 0)]), stretch, -1)

    def next_start(self, entry: Ints) -> Ints:
        """First entry of the next stretch after each entry; `FAR` where there is none."""
        return np.append(self.start, FAR)[np.searchsorted(self.start, entry, side="right")]

    def end_after(self, entry: Ints) -> Ints:
        """The entry at which the stretch that each entry lies in is over; `FAR` where it lies in none."""
        stretch = self.containing(entry)
        return np.where(stretch >= 0, np.append(self.end, FAR)[stretch], FAR)


def runs_of(wanted: Bools, stacked: Bools) -> Stretches:
    """Maximal runs of wanted entries; those that are not stacked do not interrupt one."""
    saying = np.flatnonzero(stacked)
    edge = np.diff(np.concatenate([[0], wanted[saying].astype(np.int8), [0]]))
    first, past = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    return Stretches(start=saying[first], end=np.append(saying, len(wanted) + 1)[past])


def steps_of(snapshot: Snapshot, state: DeviceState, facts: Ints) -> Stretches:
    """The optimizer's steps; `facts` are those of the entries' stacks [entries].

    What a step has its closure evaluate is no part of it: a step that calls one is what lies between and behind.
    """
    own, stacked = has(facts, Fact.OPTIMIZER_STEP), has(facts, Fact.STACK)
    annotated = _annotated(snapshot, state, "Optimizer.step#")
    if annotated is None:
        return runs_of(own, stacked)
    calls = has(facts, Fact.CLOSURE)
    return _without(annotated, runs_of((calls | has(facts, Fact.ENGINE)) & ~own, stacked), np.flatnonzero(calls))


def whole_steps_of(snapshot: Snapshot, state: DeviceState, facts: Ints) -> Stretches:
    """Return the steps with what their closures evaluate, each from its first entry to its last."""
    if (annotated := _annotated(snapshot, state, "Optimizer.step#")) is not None:
        return annotated
    calls, own = has(facts, Fact.CLOSURE), has(facts, Fact.OPTIMIZER_STEP)
    # A closure's backward runs on a thread of its own: that stack does not show the step, and does not end it.
    is_elsewhere = has(facts, Fact.ENGINE) & ~own & ~calls & calls.any()
    return runs_of(own | calls, has(facts, Fact.STACK) & ~is_elsewhere)


def _without(stretches: Stretches, parts: Stretches, wanted: Ints) -> Stretches:
    """The stretches that have a wanted entry, without those parts; the rest of each stays, even if empty."""
    starts, ends = [], []
    for start, end in zip(stretches.start.tolist(), stretches.end.tolist(), strict=True):
        if np.searchsorted(wanted, start) < np.searchsorted(wanted, end):
            first, last = np.searchsorted(parts.end, start, side="right"), np.searchsorted(parts.start, end)
            for part in range(first, last):
                if parts.start[part] > start:
                    starts.append(start)
                    ends.append(int(parts.start[part]))
                start = min(int(parts.end[part]), end)
        starts.append(start)
        ends.append(end)
    return Stretches(start=np.array(starts, dtype=np.int64), end=np.array(ends, dtype=np.int64))


def _annotated(snapshot: Snapshot, state: DeviceState, prefix: str) -> Stretches | None:
    """Stretches by annotations; None where there are none or the recording has no times to place them."""
    notes, trace = state.annotations, state.trace
    if not len(trace) or trace.time_us[0] < 0:
        return None
    named = np.array([text.startswith(prefix) for text in snapshot.texts], dtype=np.bool_)
    chosen = named[notes.name] & (notes.name >= 0) if len(named) else np.zeros(len(notes), dtype=np.bool_)
    starts = np.sort(notes.time_us[chosen & notes.is_start])
    ends = np.sort(notes.time_us[chosen & ~notes.is_start])
    if not len(starts):
        return None
    # A tied entry may lie on either side; it counts as inside.
    start = np.searchsorted(trace.time_us, starts, side="left")
    end = np.searchsorted(trace.time_us, ends, side="right")
    after = np.searchsorted(ends, starts, side="left")
    return Stretches(start=start, end=np.append(end, len(trace) + 1)[np.minimum(after, len(end))])


class DevicePhases:
    """Steps and backward passes of one device, and what every entry's stack proves."""

    def __init__(self, snapshot: Snapshot, state: DeviceState, facts: Ints) -> None:
        self.of_entry = facts[state.trace.stack]
        stacked = has(self.of_entry, Fact.STACK)
        self.steps = steps_of(snapshot, state, self.of_entry)
        self.whole_steps = whole_steps_of(snapshot, state, self.of_entry)
        annotated = _annotated(snapshot, state, "Optimizer.zero_grad#")
        self.zero_grads = annotated or runs_of(has(self.of_entry, Fact.ZERO_GRAD), stacked)
        self.has_cpp = bool(has(facts, Fact.CPP).any())
        trains = (
            len(self.steps.start) or len(self.zero_grads.start) or has(facts, Fact.ENGINE, Fact.BACKWARD_CALL).any()
        )
        self.is_stackless_autograd = bool(trains) and not self.has_cpp and bool(has(facts, Fact.STACK).any())
        engine = has(self.of_entry, Fact.ENGINE)
        self.backwards = runs_of(engine, stacked)
        is_silent, goes_on = ~stacked & self.is_stackless_autograd, calls_backward(snapshot.stacks, facts)
        # Of entries without a stack, where stacks are Python's alone: autograd's own threads have none.
        self.stackless_runs = runs_of(is_silent, is_silent | goes_on[state.trace.stack])
        self.num_backward = _running_count(engine | (~stacked & self.is_stackless_autograd))
        self.num_maybe_backward = _running_count(engine | ~stacked)
        self.next_forward = _next_forward(
            has(self.of_entry, Fact.MODULE_FORWARD) & ~engine,
            engine | has(self.of_entry, Fact.OPTIMIZER_STEP, Fact.ZERO_GRAD) | (~stacked & self.is_stackless_autograd),
        )
        self.has_only_forward = bool(
            has(self.of_entry, Fact.MODULE_FORWARD).any() and not len(self.steps.start) and not self.num_backward[-1]
        )

    @property
    def seen_backwards(self) -> Stretches:
        """Backward passes by their stacks; where no stack tells of one, by the silence of autograd's threads."""
        return self.backwards if len(self.backwards.start) else self.stackless_runs

    def is_of_grad_call(self, entry: Ints) -> Bools:
        """Mark entries of a backward right behind an entry of `torch.autograd.grad`, which makes its root."""
        is_called = np.append(has(self.of_entry, Fact.GRAD_CALL), False)
        is_of_call = np.zeros(len(entry), dtype=np.bool_)
        for runs in (self.backwards, self.stackless_runs):
            run = runs.containing(entry)
            is_of_call |= (run >= 0) & is_called[np.append(runs.start, 0)[run] - 1]
        return is_of_call


def _next_forward(is_forward: Bools, is_learning: Bools) -> Ints:
    """Return the entry at which the next forward begins, for each entry; `FAR` behind the last [entries + 1]."""
    number = np.arange(len(is_forward) + 1)
    rows, behind = np.append(is_forward, False), np.append(is_learning, False)
    last = np.maximum.accumulate(np.where(rows, number, -1)), np.maximum.accumulate(np.where(behind, number, -1))
    to_come = (np.append(np.flatnonzero(chosen), FAR)[_running_count(chosen)] for chosen in (is_forward, is_learning))
    forward, learning = to_come
    return np.where((last[0] <= last[1]) & (forward < learning), forward, FAR)


def _running_count(wanted: Bools) -> Ints:
    return np.concatenate([[0], np.cumsum(wanted)])
