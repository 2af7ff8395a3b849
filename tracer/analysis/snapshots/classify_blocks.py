"""What a block of a snapshot is, as far as its stacks, the annotations and its life prove it.

A snapshot has no categories. Each rule below says what it takes as proof; a block that no rule proves is "not known".
The first rule that holds decides, so the rules stand in the order of their strength.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tracer.analysis.kinds import EVIDENCE_TEXT, Evidence, Kind
from tracer.analysis.snapshots.sites import Fact, Sites
from tracer.snapshot.columns import Bools, DeviceState, Int64s, Snapshot
from tracer.snapshot.replay import BEFORE, Lives

NOT_KNOWN: Final = Kind.UNKNOWN.words
# What a block of a snapshot can be, in words: what was allocated before is told by its place in the recording.
KINDS: Final = (
    *(kind.words for kind in Kind if kind not in (Kind.UNKNOWN, Kind.BEFORE_RECORDING)),
    NOT_KNOWN,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """A kind, and the evidence that a block is of it."""

    what: Kind
    how: Evidence

    @property
    def kind(self) -> str:
        """In words."""
        return self.what.words

    @property
    def evidence(self) -> str:
        """In words."""
        return EVIDENCE_TEXT[self.how]


# Index 0 is what holds when nothing does.
RULES: Final = (
    Rule(Kind.UNKNOWN, Evidence.UNPROVED),
    Rule(Kind.WORKSPACE, Evidence.WORKSPACE_STACK),
    Rule(Kind.OPTIMIZER_STATE, Evidence.OPTIMIZER_STATE_STACK),
    Rule(Kind.GRADIENT, Evidence.ACCUMULATE_GRAD_STACK),
    Rule(Kind.GRADIENT, Evidence.FREED_BY_ZERO_GRAD),
    Rule(Kind.GRADIENT, Evidence.BACKWARD_TO_STEP),
    Rule(Kind.OPTIMIZER_STATE, Evidence.OUTLIVED_STEP),
    Rule(Kind.TEMPORARY, Evidence.WITHIN_STEP),
    Rule(Kind.ACTIVATION, Evidence.RELEASED_BY_AUTOGRAD),
    Rule(Kind.TEMPORARY, Evidence.WITHIN_BACKWARD),
    Rule(Kind.PARAMETER, Evidence.MODULE_SETUP_STACK),
    Rule(Kind.TEMPORARY, Evidence.BEFORE_ANY_BACKWARD),
)
# Words that a tracer writes into an entry's `category`, in torch's spelling.
_RECORDED = {kind.name.lower(): kind.words for kind in Kind if kind.words in KINDS and kind != Kind.UNKNOWN}
RECORDED_EVIDENCE: Final = EVIDENCE_TEXT[Evidence.SAID_BY_RECORDING]
HELD_EVIDENCE: Final = EVIDENCE_TEXT[Evidence.HELD_BY_PROGRAM]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The optimizer steps and zero_grad calls of one device, as ranges of entries.

    Attributes:
        start: First entry of each step [N], ascending.
        end: The entry from which on the step is over [N]; beyond the trace if the recording ends in it.
    """

    start: Int64s
    end: Int64s

    def containing(self, entry: Int64s) -> Int64s:
        """The step that each entry lies in, or -1."""
        step = np.searchsorted(self.start, entry, side="right") - 1
        if not len(self.start):
            return step
        return np.where((step >= 0) & (entry < self.end[np.maximum(step, 0)]), step, -1)

    def next_start(self, entry: Int64s) -> Int64s:
        """First entry of the next step after each entry; a very large number where there is none."""
        padded = np.append(self.start, np.iinfo(np.int64).max)
        return padded[np.searchsorted(self.start, entry, side="right")]


class KindFinder:
    """Decides the kinds of one device's blocks. Built once, asked for any rows of `Lives`.

    Args:
        snapshot: All of it.
        state: The device's part.
        sites: Of the same snapshot.
        held: Kinds by address of what the program held when the history began.
    """

    def __init__(
        self, snapshot: Snapshot, state: DeviceState, sites: Sites, *, held: Mapping[int, str] | None = None
    ) -> None:
        self._snapshot, self._state, self._facts = snapshot, state, sites.facts
        self._held = dict(held or {})
        self._labels = sites.labels
        facts = self._facts[state.trace.stack]
        self._steps = self._annotated("Optimizer.step#") or _runs(facts, Fact.OPTIMIZER_STEP)
        self._zero_grads = self._annotated("Optimizer.zero_grad#") or _runs(facts, Fact.ZERO_GRAD)
        # An entry without a stack may be the engine's own: its threads have no Python frames.
        maybe_backward = _has(facts, Fact.ENGINE) | ~_has(facts, Fact.STACK)
        self._backward_count = np.concatenate([[0], np.cumsum(maybe_backward)])
        self._has_cpp = bool((self._facts & Fact.CPP).any())

    @property
    def backward_runs(self) -> tuple[Int64s, Int64s]:
        """First entry of each run of entries in backward, and the entry at which it is over; stacks show them."""
        runs = _runs(self._facts[self._state.trace.stack], Fact.ENGINE)
        return runs.start, runs.end

    @property
    def optimizer_runs(self) -> tuple[Int64s, Int64s]:
        """The same of the optimizer's steps, which annotations or stacks show."""
        return self._steps.start, self._steps.end

    def phase_at(self, entry: int) -> str:
        """`backward` or `optimizer`, where stacks or annotations show that an entry is in one, else the empty text."""
        for phase, (start, end) in (("optimizer", self.optimizer_runs), ("backward", self.backward_runs)):
            run = int(np.searchsorted(start, entry, side="right")) - 1
            if entry >= 0 and run >= 0 and entry < end[run]:
                return phase
        return ""

    def kind_numbers(self, lives: Lives, rows: Int64s) -> Int64s:
        """The index into `KINDS` of each of these rows."""
        of_rule = np.array([KINDS.index(rule.kind) for rule in RULES], dtype=np.int64)
        number = of_rule[self.rules(lives, rows)]
        for known in (self._held_numbers(lives, rows), self._recorded_numbers(lives, rows)):
            number = np.where(known >= 0, known, number)
        return number

    def kinds_and_evidence(self, lives: Lives, rows: Int64s) -> list[tuple[str, str]]:
        """The kind of each row, and how it is known: from the recording, from the program, or by a rule."""
        columns = (
            self._recorded_numbers(lives, rows).tolist(),
            self._held_numbers(lives, rows).tolist(),
            self.rules(lives, rows).tolist(),
        )
        by_rule = [(rule.kind, rule.evidence) for rule in RULES]
        return [
            (KINDS[recorded], RECORDED_EVIDENCE)
            if recorded >= 0
            else (KINDS[held], HELD_EVIDENCE)
            if held >= 0
            else by_rule[rule]
            for recorded, held, rule in zip(*columns, strict=True)
        ]

    def rules(self, lives: Lives, rows: Int64s) -> Int64s:
        """The index into `RULES` of each of these rows."""
        born = self._facts[lives.stack[rows]]
        freed = self._free_facts(lives, rows)
        begin, end = lives.begin[rows], lives.end[rows]
        length = len(self._state.trace)
        in_backward, in_step = _has(born, Fact.ENGINE), self._in_step(born, begin)
        outside = _has(born, Fact.STACK) & ~in_backward & ~in_step & self._has_cpp
        by_autograd = _has(freed, Fact.ENGINE) | _has(freed, Fact.RELEASE_SAVED)
        zeroed = _has(freed, Fact.ZERO_GRAD) | (self._zero_grads.containing(lives.free_entry[rows]) >= 0)
        step_over = self._end_of_step(begin)
        proofs = (
            _has(born, Fact.WORKSPACE),
            _has(born, Fact.OPTIMIZER_STATE),
            _has(born, Fact.ACCUMULATE_GRAD),
            zeroed & ~in_step & (in_backward | (begin == BEFORE)),
            in_backward & (end > self._steps.next_start(begin)),
            in_step & (end >= step_over),
            in_step & (end < step_over) & (end < length),
            outside & (begin > BEFORE) & by_autograd,
            in_backward & by_autograd,
            _has(born, Fact.MODULE_SETUP) & (end == length),
            outside & (begin > BEFORE) & (end < length) & self._no_backward_between(begin, end),
        )
        return np.select(proofs, range(1, len(RULES)), default=0).astype(np.int64)

    def _recorded_numbers(self, lives: Lives, rows: Int64s) -> Int64s:
        """The index into `KINDS` that the recording itself gives each row, or -1."""
        entry, category = lives.alloc_entry[rows], self._state.trace.category
        number = np.array([_label_number(word) for word in self._labels], np.int64)[lives.stack[rows]]
        if len(category) and (category >= 0).any():
            of_text = _kind_numbers([*(text.lower() for text in self._snapshot.texts), ""])
            recorded = of_text[np.where(entry >= 0, category[np.maximum(entry, 0)], -1)]
            number = np.where(number >= 0, number, recorded)
        return number

    def _held_numbers(self, lives: Lives, rows: Int64s) -> Int64s:
        """The index into `KINDS` of what the program held when the history began, or -1."""
        number = np.full(len(rows), -1, dtype=np.int64)
        if self._held:
            before = np.flatnonzero(lives.begin[rows] == BEFORE)
            held = [self._held.get(address) for address in lives.addr[rows[before]].tolist()]
            number[before] = [KINDS.index(kind) if kind is not None else -1 for kind in held]
        return number

    def _free_facts(self, lives: Lives, rows: Int64s) -> NDArray[np.int64]:
        """The facts of the stacks that freed the rows.

        A recording with `context="alloc"` repeats at the free the stack of the allocation, which proves nothing.
        """
        entry = lives.free_entry[rows]
        if not len(self._state.trace):
            return np.zeros(len(rows), dtype=np.int64)
        stack = np.where(entry >= 0, self._state.trace.stack[np.maximum(entry, 0)], 0)
        return np.where(stack == lives.stack[rows], 0, self._facts[stack])

    def _in_step(self, born: NDArray[np.int64], begin: Int64s) -> Bools:
        return _has(born, Fact.OPTIMIZER_STEP) | (_has(born, Fact.STACK) & (self._steps.containing(begin) >= 0))

    def _end_of_step(self, begin: Int64s) -> Int64s:
        """The entry at which the step that an entry lies in is over; a very large number where it lies in none."""
        step = self._steps.containing(begin)
        far = np.iinfo(np.int64).max
        return np.where(step >= 0, np.append(self._steps.end, far)[step], far)

    def _no_backward_between(self, begin: Int64s, end: Int64s) -> Bools:
        last = len(self._backward_count) - 1
        count = self._backward_count
        same: Bools = count[np.minimum(end, last)] == count[np.clip(begin, 0, last)]
        return same

    def _annotated(self, prefix: str) -> Steps | None:
        """Steps by annotations; None where there are none or the recording has no times to place them."""
        notes, trace = self._state.annotations, self._state.trace
        if not len(trace) or trace.time_us[0] < 0:
            return None
        named = np.array([text.startswith(prefix) for text in self._snapshot.texts], dtype=np.bool_)
        chosen = named[notes.name] & (notes.name >= 0) if len(named) else np.zeros(len(notes), dtype=np.bool_)
        starts = notes.time_us[chosen & notes.is_start]
        ends = notes.time_us[chosen & ~notes.is_start]
        if not len(starts):
            return None
        # A tied entry may lie on either side; it counts as inside.
        start = np.searchsorted(trace.time_us, np.sort(starts), side="left")
        end = np.searchsorted(trace.time_us, np.sort(ends), side="right")
        after = np.searchsorted(np.sort(ends), np.sort(starts), side="left")
        return Steps(start=start, end=np.append(end, len(trace) + 1)[np.minimum(after, len(end))])


def _kind_numbers(words: Sequence[str]) -> Int64s:
    """The index into `KINDS` of each recorded word, or -1."""
    kinds = (_RECORDED.get(word) for word in words)
    return np.array([KINDS.index(kind) if kind is not None else -1 for kind in kinds], dtype=np.int64)


def _label_number(word: str) -> int:
    """The index into `KINDS` that our own label gives a block, also where it is that nothing is known; else -1."""
    kind = Kind.__members__.get(word.upper())
    return KINDS.index(kind.words) if kind is not None and kind.words in KINDS else -1


def _has(facts: NDArray[np.int64], fact: Fact) -> Bools:
    found: Bools = (facts & int(fact)) != 0
    return found


def _runs(facts: NDArray[np.int64], fact: Fact) -> Steps:
    """Maximal runs of entries with a fact; entries without a stack do not interrupt one."""
    stacked = np.flatnonzero(_has(facts, Fact.STACK))
    inside = _has(facts[stacked], fact).astype(np.int8)
    edge = np.diff(np.concatenate([[0], inside, [0]]))
    first, past = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    beyond = len(facts) + 1
    return Steps(start=stacked[first], end=np.append(stacked, beyond)[past])
