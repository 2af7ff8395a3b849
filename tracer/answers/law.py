"""Search for the law of sizes: the requests of a few runs as one sequence, with each block's size as a sum."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from tracer.allocator import law
from tracer.allocator.history import Op
from tracer.allocator.law import BlockLaw, Choice, Law, PeakAtSizes, Sizes
from tracer.answers.allocator.modelled import model_device
from tracer.answers.paths import shorten_paths, source_place
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.answers.sums_of_sizes import Solver, Values, rules_of
from tracer.blocks.kinds import Evidence, Kind
from tracer.blocks.table import Blocks
from tracer.snapshot.load import load_snapshot

_CODES = {
    Op.ALLOC: law.ALLOCATE,
    Op.FREE: law.FREE,
    Op.REQUEST_FREE: law.REQUEST_FREE,
    Op.COMPLETE_FREE: law.COMPLETE_FREE,
    Op.RELEASE: law.EMPTY_CACHE,
}
_MOST_RUNS, _NUM_CHECKS = 12, 2
_MOST_CELLS = 100_000_000
"""Pairs of events of two sequences, up to which what they share is looked for."""
_MOST_CHOICES = 64
"""Most choices between cases: with more each size asks for something else, and a run counts as a whole."""
_LEAST_SHARE = 0.001
"""Share of a peak: blocks of less decide no further run."""


@dataclass(frozen=True)
class SizedRun:
    """The requests of the program at some sizes."""

    sizes: Sizes
    events: tuple[tuple[int, int], ...]  # Code, and of a free how many allocations ago the block was made
    requested: tuple[int, ...]  # Bytes of each allocation
    homes: tuple[int, ...]  # Number of its stream and pool
    labels: tuple[str, ...]  # Kind and line
    allocated_bytes: int  # Peaks of the run by torch's counters
    reserved_bytes: int

    @property
    def program(self) -> tuple[object, ...]:
        """The requests without their sizes: equal in all runs of one program."""
        return self.events, self.homes


@dataclass(frozen=True)
class CheckedRun:
    """Peaks of a run, beside those of a law that is not made of it."""

    sizes: Sizes
    allocated_bytes: int
    reserved_bytes: int
    said: PeakAtSizes

    @property
    def errors(self) -> tuple[float, float]:
        """Differences of the law's allocated and reserved peak, as shares of the run's."""
        return self.said.allocated_bytes / self.allocated_bytes - 1, self.said.reserved_bytes / self.reserved_bytes - 1


@dataclass(frozen=True)
class FoundLaw:
    """A law, and how it was found."""

    law: Law
    checks: tuple[CheckedRun, ...]  # Of runs before the law was made of them too
    sizes: tuple[Sizes, ...]  # Of all runs, with the checks

    @property
    def error(self) -> float:
        """The largest error of a check."""
        return max((abs(error) for check in self.checks for error in check.errors), default=0.0)


def run_of(sizes: Sizes, path: Path, allocated_bytes: int, reserved_bytes: int) -> SizedRun | None:
    """Return the requests of the fullest device of a recording that begins with CUDA; None if there are none."""
    devices = replay_snapshot(load_snapshot(path)).devices
    device = max(devices, key=lambda each: int(each.replay.reserved_bytes.max()))
    if (modelled := model_device(device)) is None:
        return None
    history, numbers, labels = modelled.history, dict[int, int](), _labels(device.blocks)
    events, made = list[tuple[int, int]](), list[int]()
    for code, life in zip(*modelled.program.operations, strict=True):
        if code == Op.ALLOC:
            numbers[life] = len(made)
            made.append(life)
        if (event := _CODES.get(Op(code))) is not None:
            ago = len(made) - numbers[life] if code not in (Op.ALLOC, Op.RELEASE) else 0
            events.append((event, ago))
    homes = np.unique(history.stream, return_inverse=True)[1].reshape(-1) * len(history.pools) + history.pool
    return SizedRun(
        sizes,
        in_order(events),
        tuple(history.lives.requested_bytes[made].tolist()),
        tuple(homes[made].tolist()),
        tuple(labels[life] for life in made),
        allocated_bytes,
        reserved_bytes,
    )


def in_order(events: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Order the frees between two allocations by age: a cache that is emptied has another order in each run."""

    def is_fixed(event: tuple[int, int]) -> bool:
        return event[0] in (law.ALLOCATE, law.EMPTY_CACHE)

    parts = [
        list(part) if fixed else sorted(part, key=lambda event: (-event[1], event[0]))
        for fixed, part in groupby(events, is_fixed)
    ]
    return tuple(event for part in parts for event in part)


def _labels(blocks: Blocks) -> list[str]:
    """Kind and line of each block; a snapshot's rules infer many kinds."""
    sites = {place: blocks.value(place) for place in set(blocks.place.tolist())}
    places = {
        place: "" if site is None else source_place(site.file, site.line) if site.file is not None else site.frame
        for place, site in sites.items()
    }
    likely = {evidence: "likely " * evidence.text.startswith("likely") for evidence in Evidence}
    columns = zip(blocks.kind.tolist(), blocks.evidence.tolist(), blocks.place.tolist(), strict=True)
    return [
        ", ".join(filter(None, (likely[Evidence(evidence)] + Kind(kind).words, shorten_paths(places[place]))))
        for kind, evidence, place in columns
    ]


def find_law(
    names: Sequence[str],
    ranges: Sequence[tuple[int, int]],
    near: Sequence[tuple[int, int]],
    make_run: Callable[[Sizes], SizedRun],
) -> FoundLaw:
    """Run at some sizes until the law says what further runs need, or there were enough.

    Args:
        near: Ranges to run in.
    """
    runs = {at: make_run(at) for at in first_sizes(near)}
    while True:
        shared = SharedSequence(list(runs.values()))
        left = _MOST_RUNS - len(runs)
        if left > _NUM_CHECKS and (at := shared.sizes_to_ask(near)) is not None:
            runs[at] = make_run(at)
            continue
        law_, checks = shared.law(names, ranges), list[CheckedRun]()
        for at in unused_sizes(near, runs)[: min(left, _NUM_CHECKS)]:
            runs[at] = run = make_run(at)
            checks.append(CheckedRun(at, run.allocated_bytes, run.reserved_bytes, law_.peak(at)))
        found = FoundLaw(law_, tuple(checks), tuple(runs))
        if not found.error:
            return found
        if left < 2 * _NUM_CHECKS:
            return replace(found, law=SharedSequence(list(runs.values())).law(names, ranges))


@dataclass
class _Event:
    """An event of some runs: an allocation, or another one of an allocation's block."""

    code: int
    slot: int  # Number of the allocation; -1 for an emptied cache
    rows: frozenset[int]  # Numbers of the runs
    condition: int = 0  # Number of its condition, or 0


class SharedSequence:
    """One sequence with the requests of all runs: shared ones stand in it once, beside those of some runs."""

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
        self._choices = {cases: [Choice()] for cases in self._weights}
        if len(self._weights) <= _MOST_CHOICES:
            self._find_rules()

    def _find_rules(self) -> None:
        """Find the rules of each choice, the likeliest first: those of one that says the case of this one, if any."""
        points, found = [run.sizes for run in self._runs], dict[Values, list[Choice]]()
        for cases in sorted(self._weights, key=lambda cases: cases.count(None)):
            for other, rules in found.items():
                pairs = [(a, b) for a, b in zip(other, cases, strict=True) if b is not None]
                said = dict(pairs)
                if len(set(pairs)) == len(said) and None not in said:
                    found[cases] = [
                        replace(rule, cases=tuple(said.get(case, pairs[0][1]) for case in rule.cases)) for rule in rules
                    ]
                    break
            else:
                rules = rules_of(cases, points)
                self._choices[cases] = rules
                if rules[0].axis:
                    found[cases] = rules
        self._choices |= found

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
            (run.sizes, tuple(self._case(key, rule, row) for key, rule in zip(choices, rules, strict=True)))
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
            tuple(runs),
        )

    def _case(self, cases: Values, rule: Choice, row: int) -> int:
        """The case of a choice in a run; where it has none, that of its rule or of the nearest run that has one."""
        at = self._runs[row].sizes
        if cases[row] is None and not rule.axis:
            known = [other for other, case in enumerate(cases) if case is not None]
            row = min(known, key=lambda other: law.distance(self._runs[other].sizes, at))
        return rule.at(at) if (case := cases[row]) is None else case

    def sizes_to_ask(self, ranges: Sequence[tuple[int, int]]) -> Sizes | None:
        """Return the sizes at which rules that agree with all runs differ most; None where it matters nowhere."""
        used = {run.sizes for run in self._runs}
        shares = product([part / 12 for part in range(13)], repeat=len(ranges))
        pool = {_at(ranges, at, (unit,) * len(ranges)) for at in shares for unit in (1, 2)} - used
        weighted = [(self._weights[cases], rules) for cases, rules in self._choices.items()]
        doubts = [
            (sum(share * (len({rule.at(at) for rule in rules}) - 1) for share, rules in weighted), at)
            for at in sorted(pool)
        ]
        doubt, at = max(doubts, default=(0.0, ()))
        return at if doubt >= _LEAST_SHARE else None

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
        runs = zip(values, self._runs, strict=False)
        shares = [value / run.allocated_bytes for value, run in runs if value is not None]
        self._weights[cases] = max(self._weights.get(cases, 0.0), *shares, 0.0)

    def _add(self, rows: Sequence[int]) -> None:
        """Add runs of one program."""
        like = self._runs[rows[0]]
        made = [event.slot for event in self._events if event.code == law.ALLOCATE]
        slots = {number: made[known] for known, number in self._shared(made, rows)}
        shared = set(slots.values())
        for number, kind in enumerate(zip(like.homes, like.labels, strict=True)):
            if number not in slots:
                slots[number] = len(self._table)
                self._table.append([None] * len(self._runs))
                self._kinds.append(kind)
            for row in rows:
                self._table[slots[number]][row] = self._runs[row].requested[number]
        added, count = list[_Event](), 0
        for code, ago in like.events:
            count += code == law.ALLOCATE
            slot = -1 if code == law.EMPTY_CACHE else slots[count - (ago or 1)]
            added.append(_Event(code, slot, frozenset(rows)))
        self._events = _merged(self._events, added, shared)

    def _shared(self, made: Sequence[int], rows: Sequence[int]) -> list[tuple[int, int]]:
        """Positions of the allocations in the sequence that are these runs' too, and theirs.

        Those of which a sum says the size are paired first, and between them those at one line.
        """
        like, pairs, before = self._runs[rows[0]], list[tuple[int, int]](), (-1, -1)
        found = list(zip(like.homes, *(self._runs[row].requested for row in rows), strict=True))
        lines = [(home, label.partition(", ")[2]) for home, label in zip(like.homes, like.labels, strict=True)]
        known = [(home, label.partition(", ")[2]) for home, label in (self._kinds[slot] for slot in made)]
        for pair in [*common([self._said(slot, rows) for slot in made], found), (len(made), len(found))]:
            inner = common([{line} for line in known[before[0] + 1 : pair[0]]], lines[before[1] + 1 : pair[1]])
            pairs += [*((before[0] + 1 + a, before[1] + 1 + b) for a, b in inner), pair]
            before = pair
        return pairs[:-1]

    def _said(self, slot: int, rows: Sequence[int]) -> frozenset[tuple[int, ...]]:
        """Home of an allocation, and its bytes in some runs by each sum that has its bytes in the runs so far."""
        home = self._kinds[slot][0]
        return frozenset((home, *sizes) for sizes in self._solver.said(tuple(self._table[slot]), tuple(rows)))


def _merged(events: Sequence[_Event], added: Sequence[_Event], shared: Collection[int]) -> list[_Event]:
    """One sequence of both, in which what is in both stands once.

    Args:
        shared: Slots of allocations that are in both.
    """
    merged = list[_Event]()
    for old, new in zip(_between(events, shared), _between(added, shared), strict=True):
        pairs = common([{(event.code, event.slot)} for event in old], [(event.code, event.slot) for event in new])
        before = (0, 0)
        for at, other in [*pairs, (len(old), len(new))]:
            merged += [*old[before[0] : at], *new[before[1] : other]]
            if at < len(old):
                merged.append(replace(old[at], rows=old[at].rows | new[other].rows))
            before = at + 1, other + 1
    return merged


def _between(events: Sequence[_Event], slots: Collection[int]) -> list[Sequence[_Event]]:
    """Cut a sequence behind each allocation of these slots."""
    ends = [at + 1 for at, event in enumerate(events) if event.code == law.ALLOCATE and event.slot in slots]
    return [events[start:end] for start, end in pairwise([0, *ends, len(events)])]


def common(first: Sequence[Collection[Any]], other: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence; where it is too long, of its beginning and its end.

    Args:
        first: At each position the values of which the other sequence may have any.
    """
    ids = {value: number for number, value in enumerate(dict.fromkeys(other))}
    of_other = np.array([ids[value] for value in other])
    alike = {
        values: np.isin(of_other, [ids[each] for each in values if each in ids]) for values in map(frozenset, first)
    }
    rows = [alike[frozenset(values)] for values in first]
    num_first, num_other = len(first), len(other)
    least = min(num_first, num_other)
    start = next((at for at in range(least) if not rows[at][at]), least)
    end = next((at for at in range(least - start) if not rows[-1 - at][-1 - at]), least - start)
    row, column = num_first - start - end, num_other - start - end
    pairs = [(num_first - 1 - back, num_other - 1 - back) for back in range(end)]
    if row * column <= _MOST_CELLS:
        lengths = np.zeros((row + 1, column + 1), np.uint16)  # Of the subsequences of both beginnings
        for number, items in enumerate(rows[start : start + row]):
            longer = np.maximum(lengths[number, 1:], lengths[number, :-1] + items[start : start + column])
            np.maximum.accumulate(longer, out=lengths[number + 1, 1:])
        while row and column:
            if lengths[row - 1, column] == lengths[row, column]:
                row -= 1
            elif lengths[row, column - 1] == lengths[row, column]:
                column -= 1
            else:
                row, column = row - 1, column - 1
                pairs.append((start + row, start + column))
    return [*((each, each) for each in range(start)), *reversed(pairs)]


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
