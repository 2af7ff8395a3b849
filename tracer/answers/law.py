"""Search for the law of sizes: from the requests of a few runs, each block's size as a sum of products of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, groupby, pairwise, product
from operator import eq
from typing import TypeVar

import numpy as np

from tracer.allocator import law
from tracer.allocator.history import Op
from tracer.allocator.law import BlockLaw, Choice, Law, Part, PeakAtSizes, Sizes, Sum
from tracer.answers.allocator.modelled import Modelled
from tracer.answers.paths import shorten_paths, source_place
from tracer.arrays import Floats
from tracer.blocks.kinds import Kind
from tracer.blocks.table import Blocks

_CODES = {
    Op.ALLOC: law.ALLOCATE,
    Op.FREE: law.FREE,
    Op.REQUEST_FREE: law.REQUEST_FREE,
    Op.COMPLETE_FREE: law.COMPLETE_FREE,
    Op.RELEASE: law.EMPTY_CACHE,
}
_MOST_RUNS, _NUM_CHECKS = 12, 2
_MOST_TERMS, _MOST_CASES = 3, 3
_DIVISORS = tuple(1 << power for power in range(7))
"""Divisors of the factors of a sum: packed bits take an eighth of a byte."""
_STEPS = tuple(1 << power for power in range(1, 14))
"""Numbers of elements that kernels take at a time, or to which they align."""
_MOST_EDITS = 2000
"""Events in which sequences may differ, so that what they share is looked for."""
_MOST_CHOICES = 64
"""Most choices between cases: with more each size asks for something else, and a run counts as a whole."""
_LEAST_SHARE = 0.001
"""Share of a peak: blocks of less decide no further run."""
Values = tuple[int | None, ...]
Item = TypeVar("Item")


@dataclass(frozen=True)
class SizedRun:
    """The requests of the program at some sizes."""

    sizes: Sizes
    events: tuple[tuple[int, int], ...]  # Code, and of a free how many allocations ago the block was made
    requested: tuple[int, ...]  # Bytes of each allocation
    homes: tuple[int, ...]  # Number of its stream and pool
    labels: tuple[str, ...]  # Kind and line

    @property
    def program(self) -> tuple[object, ...]:
        """The requests without their sizes: equal in all runs of one program."""
        return self.events, self.homes

    @cached_property
    def peak_bytes(self) -> int:
        """Most bytes that were requested and in use at once."""
        in_use = most = count = 0
        for code, ago in self.events:
            if code == law.ALLOCATE:
                in_use, count = in_use + self.requested[count], count + 1
                most = max(most, in_use)
            elif code in (law.FREE, law.REQUEST_FREE):
                in_use -= self.requested[count - ago]
        return most


@dataclass(frozen=True)
class CheckedRun:
    """Peaks of a run, beside what the law says of its sizes."""

    sizes: Sizes
    allocated_bytes: int
    reserved_bytes: int
    said: PeakAtSizes | None = None  # None for a run that the law is made of

    @property
    def error(self) -> float:
        """The larger error of the law's two peaks, as a share of the run's; 0 where it says nothing."""
        if self.said is None:
            return 0.0
        allocated = self.said.allocated_bytes / max(1, self.allocated_bytes)
        return max(abs(allocated - 1), abs(self.said.reserved_bytes / max(1, self.reserved_bytes) - 1))


@dataclass(frozen=True)
class FoundLaw:
    """A law, and how it was found."""

    law: Law
    checks: tuple[CheckedRun, ...]  # What it said of runs before it was made of them too
    sizes: tuple[Sizes, ...]  # Of all runs, with the checks

    @property
    def error(self) -> float:
        """The largest error of a check, before the law was made of it too."""
        return max((check.error for check in self.checks), default=0.0)


def run_of(sizes: Sizes, modelled: Modelled, labels: Sequence[str]) -> SizedRun:
    """Return the requests of a recording that begins with CUDA.

    Args:
        labels: Of each life of the recording.
    """
    history, numbers = modelled.history, dict[int, int]()
    events, made = list[tuple[int, int]](), list[int]()
    for code, life in zip(*modelled.program.operations, strict=True):
        if code == Op.ALLOC:
            numbers[life] = len(made)
            made.append(life)
        if (event := _CODES.get(Op(code))) is not None:
            ago = len(made) - numbers[life] if code not in (Op.ALLOC, Op.RELEASE) else 0
            events.append((event, ago))
    homes = np.unique(history.stream, return_inverse=True)[1].reshape(-1) * len(history.pools) + history.pool
    requested = history.lives.requested_bytes
    return SizedRun(
        sizes,
        in_order(events),
        tuple(requested[made].tolist()),
        tuple(homes[made].tolist()),
        tuple(labels[life] for life in made),
    )


def in_order(events: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Order what is freed between two allocations by its age: a cache that is emptied has another order in each run."""

    def is_fixed(event: tuple[int, int]) -> bool:
        return event[0] in (law.ALLOCATE, law.EMPTY_CACHE)

    parts = [
        list(part) if fixed else sorted(part, key=lambda event: (-event[1], event[0]))
        for fixed, part in groupby(events, is_fixed)
    ]
    return tuple(event for part in parts for event in part)


def labels_of(blocks: Blocks) -> list[str]:
    """Return the kind and the line of each block."""
    sites = {place: blocks.value(place) for place in set(blocks.place.tolist())}
    places = {
        place: "" if site is None else source_place(site.file, site.line) if site.file is not None else site.frame
        for place, site in sites.items()
    }
    return [
        ", ".join(filter(None, (Kind(kind).words, shorten_paths(places[place]))))
        for kind, place in zip(blocks.kind.tolist(), blocks.place.tolist(), strict=True)
    ]


def find_law(
    names: Sequence[str],
    ranges: Sequence[tuple[int, int]],
    near: Sequence[tuple[int, int]],
    make_run: Callable[[Sizes], tuple[SizedRun, CheckedRun]],
) -> FoundLaw:
    """Run at some sizes until the law says what further runs need, or there were enough.

    Args:
        near: Ranges to run in.
    """
    runs: dict[Sizes, tuple[SizedRun, CheckedRun]] = {at: make_run(at) for at in first_sizes(near)}
    while True:
        shared = SharedSequence([run for run, _ in runs.values()])
        left = _MOST_RUNS - len(runs)
        if left > _NUM_CHECKS and (at := shared.sizes_to_ask(near)) is not None:
            runs[at] = make_run(at)
            continue
        law_ = shared.law(names, ranges)
        checks = []
        for at in unused_sizes(near, runs)[: min(left, _NUM_CHECKS)]:
            runs[at] = make_run(at)
            checks.append(replace(runs[at][1], said=law_.peak(at)))
        is_exact = not any(check.error for check in checks)
        if is_exact or left < 2 * _NUM_CHECKS:
            law_ = law_ if is_exact else SharedSequence([run for run, _ in runs.values()]).law(names, ranges)
            return FoundLaw(law_, tuple(checks), tuple(runs))


@dataclass
class _Event:
    """An event of some runs: an allocation, or another one of an allocation's block."""

    code: int
    slot: int  # Number of the allocation; -1 for an emptied cache
    rows: frozenset[int]  # Numbers of the runs
    condition: int = 0  # Number of its condition, or 0


class SharedSequence:
    """One sequence that has the requests of all runs: what they share stands in it once, beside what some have."""

    def __init__(self, runs: Sequence[SizedRun]) -> None:
        self._runs, self._solver = runs, Solver([run.sizes for run in runs])
        self._events = list[_Event]()
        self._kinds = list[tuple[int, str]]()  # Of each allocation its home and label
        self._table = list[list[int | None]]()  # Of each allocation its bytes in each run
        alike: dict[tuple[object, ...], list[int]] = {}
        for row, run in enumerate(runs):
            alike.setdefault(run.program, []).append(row)
        for rows in sorted(alike.values(), key=len, reverse=True):
            self._add(rows)
        self._weights = dict[Values, float]()  # By the case in each run: largest share of a peak that this decides
        self._conditions = dict[tuple[Values, int], int]()
        self._set_conditions()
        self._solved = [self._solver.solve(tuple(values)) for values in self._table]
        for slot, solved in enumerate(self._solved):
            if solved.rule is None:
                self._decide(solved.of_row, slot)
        find = rules_of if len(self._weights) <= _MOST_CHOICES else nearest
        self._choices = {cases: find(cases, [run.sizes for run in runs]) for cases in self._weights}  # Likeliest first

    def law(self, names: Sequence[str], ranges: Sequence[tuple[int, int]]) -> Law:
        """Return the law."""
        labels = {label: number for number, label in enumerate(dict.fromkeys(label for _, label in self._kinds))}
        choices = {key: number for number, key in enumerate(self._choices)}
        blocks = dict[BlockLaw, int]()
        of_slot = list[int]()
        for (home, label), solved in zip(self._kinds, self._solved, strict=True):
            choice = choices[solved.of_row] if solved.rule is None else solved.rule
            block = BlockLaw(solved.cases, choice, home, labels[label], solved.is_exact)
            of_slot.append(blocks.setdefault(block, len(blocks)))
        events, made = list[tuple[int, int, int]](), dict[int, int]()
        for event in self._events:
            if event.code == law.ALLOCATE:
                made[event.slot] = len(made)
                operand = of_slot[event.slot]
            else:
                operand = len(made) - made[event.slot] if event.slot >= 0 else 0
            events.append((event.code, operand, event.condition))
        rules = [rules[0] for rules in self._choices.values()]
        runs = [
            tuple(
                rule.at(run.sizes) if (case := key[row]) is None else case
                for key, rule in zip(choices, rules, strict=True)
            )
            for row, run in enumerate(self._runs)
        ]
        conditions = [(choices[key], case) for key, case in self._conditions]
        return Law(
            tuple(names),
            tuple(ranges),
            tuple(labels),
            tuple(blocks),
            tuple(rules),
            tuple(conditions),
            law.packed(events),
            tuple(dict.fromkeys(runs)),
        )

    def sizes_to_ask(self, ranges: Sequence[tuple[int, int]]) -> Sizes | None:
        """Return the sizes at which rules that agree with all runs differ most; None where it matters nowhere."""
        used = {run.sizes for run in self._runs}
        shares = product([part / 12 for part in range(13)], repeat=len(ranges))
        pool = {_at(ranges, at, (unit,) * len(ranges)) for at in shares for unit in (1, 2)} - used
        doubts = [(self._doubt(at), at) for at in sorted(pool)]
        doubt, at = max(doubts, default=(0.0, ()))
        return at if doubt >= _LEAST_SHARE else None

    def _doubt(self, at: Sizes) -> float:
        """Sum of the shares of a peak of which rules say differently."""
        return sum(
            self._weights[key] * (len({rule.at(at) for rule in rules}) - 1) for key, rules in self._choices.items()
        )

    def _set_conditions(self) -> None:
        """Give a condition to each event that is not in all runs that have its block; a run has one of a code."""
        alike: dict[tuple[int, int, int], list[_Event]] = {}
        for number, event in enumerate(self._events):
            alike.setdefault((event.code, event.slot, number if event.slot < 0 else 0), []).append(event)
        for (code, slot, _), events in alike.items():
            is_any = code == law.ALLOCATE or slot < 0
            is_known = [is_any or self._table[slot][row] is not None for row in range(len(self._runs))]
            if len(events[0].rows) < sum(is_known):
                cases = [0 if known else None for known in is_known]
                for case, event in enumerate(events, 1):
                    for row in event.rows:
                        cases[row] = case
                self._decide(tuple(cases), slot)
                for case, event in enumerate(events, 1):
                    event.condition = self._conditions.setdefault((tuple(cases), case), len(self._conditions) + 1)

    def _decide(self, cases: Values, slot: int) -> None:
        """Note a choice between cases, and how much of a peak it decides."""
        values = self._table[slot] if slot >= 0 else []
        shares = [value / run.peak_bytes for value, run in zip(values, self._runs, strict=False) if value is not None]
        self._weights[cases] = max(self._weights.get(cases, 0.0), *shares, 0.0)

    def _add(self, rows: Sequence[int]) -> None:
        """Add runs of one program."""
        like = self._runs[rows[0]]
        made = [event.slot for event in self._events if event.code == law.ALLOCATE]
        slots = [-1] * len(like.homes)
        for known, number in self._shared(made, rows):
            slots[number] = made[known]
        is_new = [slot < 0 for slot in slots]
        for number, slot in enumerate(slots):
            if slot < 0:
                slots[number] = slot = len(self._table)
                self._table.append([None] * len(self._runs))
                self._kinds.append((like.homes[number], like.labels[number]))
            for row in rows:
                self._table[slot][row] = self._runs[row].requested[number]
        added, count = list[_Event](), 0
        for code, ago in like.events:
            count += code == law.ALLOCATE
            slot = -1 if code == law.EMPTY_CACHE else slots[count - (ago or 1)]
            added.append(_Event(code, slot, frozenset(rows)))
        shared = {slot for slot, new in zip(slots, is_new, strict=True) if not new}
        self._events = _merged(self._events, added, shared)

    def _shared(self, made: Sequence[int], rows: Sequence[int]) -> list[tuple[int, int]]:
        """Positions of the allocations in the sequence that are these runs' too, and theirs.

        Those whose size is what is known of it come first, and between them those that it may be.
        """
        like = self._runs[rows[0]]
        said = [self._said(slot, rows) for slot in made]
        found = list(zip(like.homes, *(self._runs[row].requested for row in rows), strict=True))
        pairs, before = list[tuple[int, int]](), (-1, -1)
        for pair in [*reversed(common(said, found)), (len(said), len(found))]:
            known, others = range(before[0] + 1, pair[0]), range(before[1] + 1, pair[1])
            inner = common(known, others, lambda a, b: self._may_be(made[a], rows, b))
            pairs += [*((known[a], others[b]) for a, b in inner), pair]
            before = pair
        return pairs[:-1]

    def _said(self, slot: int, rows: Sequence[int]) -> tuple[int | None, ...]:
        """Home of an allocation, and its bytes in runs as far as the runs so far say it; equal in all is constant."""
        values = tuple(self._table[slot])
        known = {value for value in values if value is not None}
        if len(known) == 1:
            return (self._kinds[slot][0], *known, *(list(known) * (len(rows) - 1)))
        solved = self._solver.solve(values)
        is_known = solved.is_exact and len(solved.cases) == 1
        return (
            self._kinds[slot][0],
            *(solved.cases[0].at(self._runs[row].sizes) if is_known else None for row in rows),
        )

    def _may_be(self, slot: int, rows: Sequence[int], number: int) -> bool:
        """Return whether an allocation is at the same line, and as large as some sum of products may be there."""
        like, (home, label) = self._runs[rows[0]], self._kinds[slot]
        if home != like.homes[number] or label.partition(", ")[2] != like.labels[number].partition(", ")[2]:
            return False
        for row, value in enumerate(self._table[slot]):
            if value is not None:
                least, most = self._solver.growth(row, rows[0])
                if not 0.9 * least <= like.requested[number] / max(1, value) <= 1.1 * most:
                    return False
        return True


def _merged(events: Sequence[_Event], added: Sequence[_Event], shared: Collection[int]) -> list[_Event]:
    """One sequence of both, in which what is in both stands once.

    Args:
        shared: Slots of allocations that are in both.
    """
    merged = list[_Event]()
    for old, new in zip(_between(events, shared), _between(added, shared), strict=True):
        pairs = common([(event.code, event.slot) for event in old], [(event.code, event.slot) for event in new])
        before = (0, 0)
        for at, other in [*reversed(pairs), (len(old), len(new))]:
            merged += [*old[before[0] : at], *new[before[1] : other]]
            if at < len(old):
                merged.append(replace(old[at], rows=old[at].rows | new[other].rows))
            before = at + 1, other + 1
    return merged


def _between(events: Sequence[_Event], slots: Collection[int]) -> list[Sequence[_Event]]:
    """Cut a sequence behind each allocation of these slots."""
    ends = [at + 1 for at, event in enumerate(events) if event.code == law.ALLOCATE and event.slot in slots]
    return [events[start:end] for start, end in pairwise([0, *ends, len(events)])]


def common(
    first: Sequence[Item], other: Sequence[Item], is_same: Callable[[Item, Item], bool] = eq
) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence; none where too much differs.

    Source: E. Myers, "An O(ND) difference algorithm and its variations", 1986.
    """
    reached, trace = {1: 0}, list[dict[int, int]]()
    for num_edits in range(min(len(first) + len(other), _MOST_EDITS) + 1) if first and other else ():
        trace.append(dict(reached))
        for diagonal in range(-num_edits, num_edits + 1, 2):
            is_down = diagonal == -num_edits or (
                diagonal != num_edits and reached[diagonal - 1] < reached[diagonal + 1]
            )
            at = reached[diagonal + 1] if is_down else reached[diagonal - 1] + 1
            while at < len(first) and at - diagonal < len(other) and is_same(first[at], other[at - diagonal]):
                at += 1
            reached[diagonal] = at
            if at >= len(first) and at - diagonal >= len(other):
                return _walked_back(trace, at, at - diagonal)
    return []


def _walked_back(trace: Sequence[dict[int, int]], at: int, other_at: int) -> list[tuple[int, int]]:
    pairs = []
    for num_edits, reached in reversed(list(enumerate(trace))):
        diagonal = at - other_at
        is_down = diagonal == -num_edits or (diagonal != num_edits and reached[diagonal - 1] < reached[diagonal + 1])
        before = diagonal + 1 if is_down else diagonal - 1
        start = max(0, reached[before])
        while at > start + (not is_down) and other_at > start - before + is_down and at > 0 and other_at > 0:
            at, other_at = at - 1, other_at - 1
            pairs.append((at, other_at))
        at, other_at = start, start - before
    return pairs


def rules_of(cases: Values, points: Sequence[Sizes]) -> list[Choice]:
    """Return rules that give each run its case, the likeliest first; if there are none, one that goes by the nearest.

    A rule is likelier the farther runs of different cases are apart in its product of sizes.
    """
    of_row = {row: case for row, case in enumerate(cases) if case is not None}
    rules, axes = list[tuple[float, list[Choice]]](), exponents_of(len(points[0]))[1:]
    for axis in axes:
        value = {row: law.power(points[row], axis) for row in of_row}
        order = sorted(of_row, key=lambda row: (value[row], of_row[row]))
        ends = [(value[a], value[b]) for a, b in pairwise(order) if of_row[a] != of_row[b]]
        gap = min((b / a for a, b in ends), default=1)
        if gap > 1 and len(ends) < len(set(of_row.values())):
            in_order = tuple(dict.fromkeys(of_row[row] for row in order))
            variants = [
                Choice(in_order, axis, tuple(math.ceil(a ** (1 - at) * b**at) for a, b in ends))
                for at in (0.5, 0.2, 0.8)
            ]
            rules.append((math.log(gap) / math.log(value[order[-1]] / value[order[0]]), variants))
    if rules:
        return [variant for _, variants in sorted(rules, key=lambda rule: -rule[0]) for variant in variants]
    for axis, multiple in product(axes, (2, 4, 8, 16, 32, 64)):
        found = [set[int](), set[int]()]
        for row, case in of_row.items():
            found[law.power(points[row], axis) % multiple == 0].add(case)
        if len(found[0]) == len(found[1]) == 1:
            return [Choice((*found[0], *found[1]), axis, multiple=multiple)]
    return nearest(cases, points)


def nearest(cases: Values, points: Sequence[Sizes]) -> list[Choice]:
    """Return the rule that each run says its own case and those of sizes that are nearest to its sizes."""
    known = [(case, point) for case, point in zip(cases, points, strict=True) if case is not None]
    return [Choice(tuple(case for case, _ in known), runs=tuple(point for _, point in known))]


def exponents_of(num_sizes: int) -> list[Sizes]:
    """Return exponents of the products of which laws are made, simple ones first."""
    exponents = (each for each in product(range(3), repeat=num_sizes) if sum(each) <= 3)
    return sorted(exponents, key=lambda each: (sum(each), max(each)))


_FIRST = {
    1: ((0.0,), (0.25,), (0.5,), (0.75,), (1.0,)),
    2: ((0.0, 0.0), (1.0, 0.15), (0.15, 1.0), (1.0, 1.0), (0.5, 0.4), (0.35, 0.75), (0.7, 0.6)),
}
_UNITS = {1: ((1,), (1,), (2,), (4,), (1,)), 2: (*((1, 1),) * 4, (1, 2), (2, 1), (4, 4))}
"""Places of the first runs in the ranges, by the logarithms of sizes, and numbers of which they are odd multiples."""
_CHECKS = {1: ((0.85,), (0.4,), (0.2,), (0.93,), (0.65,)), 2: ((0.8, 0.85), (0.25, 0.5), (0.6, 0.2), (0.9, 0.5))}


def first_sizes(ranges: Sequence[tuple[int, int]]) -> list[Sizes]:
    """Return the sizes to run first: within the ranges some odd, some even, since kernels take several at a time."""
    shares, units = _FIRST[len(ranges)], _UNITS[len(ranges)]
    return list(dict.fromkeys(_at(ranges, *each) for each in zip(shares, units, strict=True)))


def unused_sizes(ranges: Sequence[tuple[int, int]], used: Collection[Sizes]) -> list[Sizes]:
    """Return sizes for checks."""
    sizes = (_at(ranges, shares, (0,) * len(ranges)) for shares in _CHECKS[len(ranges)])
    return [at for at in dict.fromkeys(sizes) if at not in used]


def _at(ranges: Sequence[tuple[int, int]], shares: Sequence[float], units: Sequence[int]) -> Sizes:
    inner = []
    for (low, high), share, unit in zip(ranges, shares, units, strict=True):
        size = low * (high / low) ** share
        inner.append(
            low if not share else high if share == 1 else (round(size / unit) | 1) * unit if unit else round(size)
        )
    return tuple(min(max(size, low), high) for size, (low, high) in zip(inner, ranges, strict=True))


@dataclass(frozen=True)
class Solved:
    """Numbers of some runs as one sum, or as one of several."""

    cases: tuple[Sum, ...]
    of_row: Values  # The case of each run
    rule: int | None = law.LEAST  # Whether the smallest or the largest case counts; None where a choice says which
    is_exact: bool = True


_Found = tuple[Sum, Sequence[int]]
"""A sum, and the points where it is the value."""


class Solver:
    """Finds sums of products of sizes that are some numbers at some points."""

    def __init__(self, points: Sequence[Sizes]) -> None:
        self._points = list(points)
        self._exponents = exponents_of(len(self._points[0]))
        self._powers = [[law.power(point, each) for point in self._points] for each in self._exponents]
        self._solved: dict[Values, Solved] = {}
        self._systems: dict[tuple[tuple[int, ...], int], list[tuple[Floats, Floats, tuple[int, ...]]]] = {}

    def solve(self, values: Values) -> Solved:
        """Return sums that are the value at each point that has one.

        They are exact if there are more points than a sum has terms; else the sums go near them.
        """
        if values not in self._solved:
            self._solved[values] = self._solve({row: value for row, value in enumerate(values) if value is not None})
        return self._solved[values]

    def growth(self, row: int, other: int) -> tuple[float, float]:
        """Return the factors between which what is a sum of products grows from one point to another."""
        factors = [powers[other] / powers[row] for powers in self._powers]
        return min(factors), max(factors)

    def _solve(self, values: Mapping[int, int]) -> Solved:
        cases, left = list[tuple[Sum, Sequence[int]]](), dict(values)
        while left:
            found = self._whole(left)
            if found is None and len(cases) + 1 < _MOST_CASES:  # else what most of them have, with one to spare
                found = self._in_steps(left, list(combinations(left, 2)), has_constant=True, least=3)
            if found is None:
                break
            cases.append(found)
            left = {row: value for row, value in left.items() if row not in found[1]}
        shape = max(cases[0][0].parts, key=lambda part: sum(part.of) + part.exponent) if cases else self._shape(values)
        for row, value in left.items():
            steps = replace(shape, times=1).at(self._points[row])
            part = replace(shape, times=value) if steps else Part(value, self._exponents[0])
            cases.append((Sum((part,), steps or 1), (row,)))
        sums = tuple(each for each, _ in cases)
        of_row = {row: number for number, (_, rows) in enumerate(cases) for row in rows}
        rules = {law.LEAST: min, law.GREATEST: max} if len(cases) == 1 or not left else {}
        said = {
            rule: [take(each.at(self._points[row]) for each in sums) for row in values] for rule, take in rules.items()
        }
        rule = next((rule for rule, sizes in said.items() if sizes == list(values.values())), None)
        return Solved(sums, tuple(of_row.get(row) for row in range(len(self._points))), rule, not left)

    def _shape(self, values: Mapping[int, int]) -> Part:
        """The product of sizes to which the values are most alike in proportion."""

        def spread(powers: Sequence[int]) -> float:
            ratios = [value / powers[row] for row, value in values.items()]
            return max(ratios) / min(ratios)

        if len(values) == 1:
            return Part(1, (1,) * len(self._exponents[0]))
        return Part(1, min(zip(self._powers, self._exponents, strict=True), key=lambda each: spread(each[0]))[1])

    def _whole(self, values: Mapping[int, int]) -> _Found | None:
        """One sum that has all values."""
        first, *others = values
        if others and len(set(values.values())) == 1:
            return Sum((Part(values[first], self._exponents[0]),)), tuple(values)
        pairs = [(first, row) for row in others]
        return (
            self._in_steps(values, pairs, has_constant=False, least=max(2, len(values)))
            or self._sum(values)
            or self._in_steps(values, pairs, has_constant=True, least=max(3, len(values)))
        )

    def _sum(self, values: Mapping[int, int]) -> _Found | None:
        """The sum of the fewest terms that has these values at these points."""
        rows, wanted = tuple(values), np.array([*values.values()], np.float64)
        for num_terms in range(1, min(_MOST_TERMS, len(rows) - 1) + 1):
            for inverse, matrix, chosen in self._systems_of(rows, num_terms):
                factors = inverse @ wanted
                if np.abs(matrix @ factors - wanted).max() < 1:
                    for divisor in _DIVISORS:
                        found = self._rounded(factors * divisor, chosen, divisor)
                        times = [sum(part.at(self._points[row]) for part in found.parts) for row in rows]
                        if times == [divisor * value for value in values.values()]:
                            return found, rows
        return None

    def _rounded(self, factors: Floats, chosen: Sequence[int], divisor: int) -> Sum:
        terms = ((round(factor), self._exponents[term]) for factor, term in zip(factors.tolist(), chosen, strict=True))
        return Sum(tuple(Part(factor, exponents) for factor, exponents in terms if factor), divisor)

    def _systems_of(self, rows: tuple[int, ...], num_terms: int) -> list[tuple[Floats, Floats, tuple[int, ...]]]:
        """The pseudo-inverse, the matrix and the terms of each set of terms that the points tell apart."""
        if (rows, num_terms) not in self._systems:
            found = self._systems[rows, num_terms] = []
            for chosen in combinations(range(len(self._exponents)), num_terms):
                matrix = np.array([[self._powers[term][row] for term in chosen] for row in rows], np.float64)
                if np.linalg.matrix_rank(matrix / matrix.max(0)) == num_terms:
                    found.append((np.linalg.pinv(matrix / matrix.max(0)) / matrix.max(0)[:, None], matrix, chosen))
        return self._systems[rows, num_terms]

    @cached_property
    def _stepped(self) -> tuple[list[Part], Floats]:
        """Products of sizes, of which one may be counted in steps, up or down, and their values at the points."""
        parts = [Part(1, each) for each in self._exponents[1:]]
        alone = [each for each in self._exponents if 0 < sum(each) <= len(each) and max(each) == 1]
        for counted, step, of in product(alone, _STEPS, self._exponents):
            parts += [Part(1, of, counted, step, *each) for each in product((step - 1, 0, step), (1, 2))]
        return parts, np.array([[part.at(point) for point in self._points] for part in parts], np.float64)

    def _in_steps(
        self, values: Mapping[int, int], pairs: Sequence[tuple[int, int]], *, has_constant: bool, least: int
    ) -> _Found | None:
        """So many bytes for each step, such as for each pair of rows of a picture, and a constant if there is one.

        Args:
            pairs: Points from which the two numbers are taken.
            least: Points at which that has to be the value.
        """
        rows, wanted = np.array([*values]), np.array([*values.values()], np.float64)
        parts, counts = self._stepped
        best, best_rows = None, rows[:0]
        for a, b in pairs:
            span = counts[:, b] - counts[:, a]
            times = np.rint((values[b] - values[a]) / np.where(span, span, np.inf))
            constant = values[a] - times * counts[:, a]
            is_equal = times[:, None] * counts[:, rows] + constant[:, None] == wanted
            number = is_equal.sum(1) * ((times > 0) & ((constant >= 0) if has_constant else (constant == 0)))
            for part in np.argsort(-number, kind="stable")[:20].tolist():
                if number[part] < max(least, len(best_rows) + 1):
                    break
                if len(np.unique(counts[part, rows[is_equal[part]]])) >= 2 + has_constant:
                    more = (Part(int(constant[part]), self._exponents[0]),) if constant[part] else ()
                    best = Sum((replace(parts[part], times=int(times[part])), *more))
                    best_rows = rows[is_equal[part]]
                    break
        return (best, tuple(best_rows.tolist())) if best is not None else None
