"""Search for the law of sizes: from the requests of a few runs, each block's size as a sum of products of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, product

import numpy as np

from tracer.allocator import law
from tracer.allocator.history import Op
from tracer.allocator.law import BlockLaw, Law, Part, PeakAtSizes, Sizes, Sums, smallest
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
_MOST_TERMS = 3
_DIVISORS = tuple(1 << power for power in range(7))
"""Divisors of the factors of a sum: packed bits take an eighth of a byte."""
_STEPS = tuple(1 << power for power in range(1, 14))
"""Numbers of elements that kernels take at a time, or to which they align."""
_MOST_EDITS = 2000
"""Allocations in which programs may differ, so that what they share is looked for."""
Values = tuple[int | None, ...]


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
    checks: tuple[CheckedRun, ...]  # Runs that it was not made of
    num_runs: int  # With the checks

    @property
    def error(self) -> float:
        """The largest error of a check."""
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
        tuple(events),
        tuple(requested[made].tolist()),
        tuple(homes[made].tolist()),
        tuple(labels[life] for life in made),
    )


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
        law_ = law_of(names, ranges, [run for run, _ in runs.values()])
        left = _MOST_RUNS - len(runs)
        if left > _NUM_CHECKS and (at := between(law_)) is not None:
            runs[at] = make_run(at)
            continue
        checks = []
        for at in unused_sizes(near, runs)[: min(left, _NUM_CHECKS)]:
            runs[at] = make_run(at)
            checks.append(replace(runs[at][1], said=law_.peak(at)))
        if left < 2 * _NUM_CHECKS or not any(check.error for check in checks):
            return FoundLaw(law_, tuple(checks), len(runs))


def law_of(names: Sequence[str], ranges: Sequence[tuple[int, int]], runs: Sequence[SizedRun]) -> Law:
    """Find the law of some runs: a program for each sequence of requests, whose common blocks are found together."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for row, run in enumerate(runs):
        alike.setdefault(run.program, []).append(row)
    groups = sorted(alike.values(), key=len, reverse=True)
    solver, rows_of = Solver([run.sizes for run in runs]), list[list[int]]()
    kinds, table = list[tuple[int, str]](), list[list[int | None]]()  # Of each allocation: its bytes in each run
    for group in groups:
        like = runs[group[0]]
        sizes = zip(like.homes, zip(*(runs[row].requested for row in group), strict=True), strict=True)
        said = [solver.solve(tuple(values))[0] for values in table]
        points = [runs[row].sizes for row in group]
        known = [
            (home, tuple(smallest(sums, at) for at in points)) for (home, _), sums in zip(kinds, said, strict=True)
        ]
        rows = [-1] * len(like.homes)
        for row, number in common(known, list(sizes)):
            rows[number] = row
        for number, row in enumerate(rows):
            if row < 0:
                rows[number] = row = len(table)
                table.append([None] * len(runs))
                kinds.append((like.homes[number], like.labels[number]))
            for run_row in group:
                table[row][run_row] = runs[run_row].requested[number]
        rows_of.append(rows)
    columns = [(home, label, tuple(values)) for (home, label), values in zip(kinds, table, strict=True)]
    distinct = {column: number for number, column in enumerate(dict.fromkeys(columns))}
    labels = {label: number for number, label in enumerate(dict.fromkeys(label for _, label in kinds))}
    programs = []
    for group, rows in zip(groups, rows_of, strict=True):
        numbers = iter(distinct[columns[row]] for row in rows)
        events = runs[group[0]].events
        programs.append(law.packed((code, next(numbers) if code == law.ALLOCATE else ago) for code, ago in events))
    at = [(run.sizes, next(n for n, group in enumerate(groups) if row in group)) for row, run in enumerate(runs)]
    return Law(
        names=tuple(names),
        ranges=tuple(ranges),
        labels=tuple(labels),
        blocks=tuple(
            BlockLaw(sums, home, labels[label], is_exact)
            for home, label, values in distinct
            for sums, is_exact in [solver.solve(values)]
        ),
        programs=tuple(programs),
        runs=tuple(at),
        axes=_axes(at),
    )


def common(first: Sequence[object], other: Sequence[object]) -> list[tuple[int, int]]:
    """Return the positions of a longest common subsequence; none where too much differs.

    Source: E. Myers, "An O(ND) difference algorithm and its variations", 1986.
    """
    reached, trace = {1: 0}, list[dict[int, int]]()
    for num_edits in range(min(len(first) + len(other), _MOST_EDITS) + 1):
        trace.append(dict(reached))
        for diagonal in range(-num_edits, num_edits + 1, 2):
            is_down = diagonal == -num_edits or (
                diagonal != num_edits and reached[diagonal - 1] < reached[diagonal + 1]
            )
            at = reached[diagonal + 1] if is_down else reached[diagonal - 1] + 1
            while at < len(first) and at - diagonal < len(other) and first[at] == other[at - diagonal]:
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


def _axes(runs: Sequence[tuple[Sizes, int]]) -> tuple[Sizes, ...]:
    """The product of sizes in whose order each program is a stretch of the runs; all sizes where there is none."""
    alone = [tuple(int(a == b) for a in range(len(runs[0][0]))) for b in range(len(runs[0][0]))]
    for axis in ((1,) * len(alone), *alone):
        programs = [program for _, program in sorted(runs, key=lambda run: law.power(run[0], axis))]
        if sum(a != b for a, b in pairwise(programs)) < len(set(programs)):
            return (axis,)
    return tuple(alone)


_FIRST = {
    1: ((0.0,), (0.35,), (0.7,), (1.0,)),
    2: ((0.0, 0.0), (1.0, 0.15), (0.15, 1.0), (1.0, 1.0), (0.5, 0.4), (0.35, 0.75), (0.7, 0.6)),
}
"""Places of the first runs in the ranges, by the logarithms of sizes."""
_CHECKS = {1: ((0.85,), (0.5,), (0.2,), (0.93,), (0.65,)), 2: ((0.8, 0.85), (0.25, 0.5), (0.6, 0.2), (0.9, 0.5))}
_NARROW = 1.5
"""Factor between runs of two programs below which it is no longer asked where one becomes the other."""


def first_sizes(ranges: Sequence[tuple[int, int]]) -> list[Sizes]:
    """Return the sizes to run first: odd ones within the ranges, since kernels take even numbers at a time."""
    return list(dict.fromkeys(_at(ranges, shares) for shares in _FIRST[len(ranges)]))


def unused_sizes(ranges: Sequence[tuple[int, int]], used: Collection[Sizes]) -> list[Sizes]:
    """Return sizes for checks."""
    return [at for at in dict.fromkeys(_at(ranges, shares) for shares in _CHECKS[len(ranges)]) if at not in used]


def _at(ranges: Sequence[tuple[int, int]], shares: Sequence[float]) -> Sizes:
    inner = (
        high if share == 1 else low if not share else min(round(low * (high / low) ** share) | 1, high)
        for (low, high), share in zip(ranges, shares, strict=True)
    )
    return tuple(inner)


def between(law_: Law) -> Sizes | None:
    """Return sizes between the two runs of different programs that are farthest apart; None where all are near."""
    axis = law_.axes[0] if len(law_.axes) == 1 else (1,) * len(law_.names)
    runs = sorted((law.power(sizes, axis), sizes, program) for sizes, program in law_.runs)
    gaps = [(b[0] / a[0], a[1], b[1]) for a, b in pairwise(runs) if a[2] != b[2]]
    for factor, below, above in sorted(gaps, reverse=True):
        middle = tuple(math.isqrt(a * b) for a, b in zip(below, above, strict=True))
        if factor > _NARROW and middle not in {sizes for sizes, _ in law_.runs}:
            return middle
    return None


class Solver:
    """Finds sums of products of sizes that are some numbers at some points."""

    def __init__(self, points: Sequence[Sizes]) -> None:
        self._points = list(points)
        exponents = product(range(3), repeat=len(self._points[0]))
        self._exponents = sorted(
            (each for each in exponents if sum(each) <= 3), key=lambda each: (sum(each), max(each))
        )
        self._powers = [[law.power(point, each) for point in self._points] for each in self._exponents]
        self._solved: dict[Values, tuple[Sums, bool]] = {}
        self._systems: dict[tuple[tuple[int, ...], int], list[tuple[Floats, Floats, tuple[int, ...]]]] = {}

    def solve(self, values: Values) -> tuple[Sums, bool]:
        """Return sums whose least is the value at each point that has one, and whether they are sure.

        They are if there are more points than a sum has terms; else the sums go through the points or near them.
        """
        if values not in self._solved:
            self._solved[values] = self._solve(values)
        return self._solved[values]

    def _solve(self, values: Values) -> tuple[Sums, bool]:
        rows = tuple(row for row, value in enumerate(values) if value is not None)
        known = {row: value for row, value in enumerate(values) if value is not None}
        finders: tuple[Callable[[], Sums | None], ...] = (
            lambda: self._sum(rows, known, most_terms=1),
            lambda: self._in_steps(rows, known, has_constant=False),
            lambda: self._sum(rows, known),
            lambda: self._in_steps(rows, known, has_constant=True),
            lambda: self._least_of_two(rows, known),
        )
        for find in finders:
            if (sums := find()) is not None:
                return sums, True
        sums = self._sum(rows, known, num_spare=0) if 1 < len(rows) <= _MOST_TERMS else None
        return sums or ((self._near(rows, known),),), False

    def _sum(
        self, rows: Sequence[int], values: dict[int, int], *, most_terms: int = _MOST_TERMS, num_spare: int = 1
    ) -> Sums | None:
        """The sum of the fewest terms that has these values at these points."""
        wanted = np.array([values[row] for row in rows], np.float64)
        if len(rows) > num_spare and len({values[row] for row in rows}) == 1:
            return ((Part(((values[rows[0]], self._exponents[0]),)),),)
        for num_terms in range(1, min(most_terms, len(rows) - num_spare) + 1):
            for inverse, matrix, chosen in self._systems_of(tuple(rows), num_terms):
                factors = inverse @ wanted
                if np.abs(matrix @ factors - wanted).max() < 1:
                    for divisor in _DIVISORS:
                        part = self._part((factors * divisor).tolist(), chosen, divisor)
                        if all(self._times(part, row) == divisor * values[row] for row in rows):
                            return ((part,),)
        return None

    def _part(self, factors: Sequence[float], chosen: Sequence[int], divisor: int) -> Part:
        terms = ((round(factor), self._exponents[term]) for factor, term in zip(factors, chosen, strict=True))
        return Part(tuple(term for term in terms if term[0]), divisor)

    def _times(self, part: Part, row: int) -> int:
        return sum(factor * law.power(self._points[row], exponents) for factor, exponents in part.terms)

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
        """Products of sizes of which one is counted in steps, up or down, and their values at the points."""
        parts = []
        alone = [each for each in self._exponents if 0 < sum(each) <= len(each) and max(each) == 1]
        for inner, step, off, outer in product(alone, _STEPS, (0, 1), self._exponents):
            terms = ((1, inner), *(((1 - step, self._exponents[0]),) if off else ()))  # down is up from less
            parts += [Part(terms, step, 1, outer, power) for power in (1, 2)]
        return parts, np.array([[part.at(point) for point in self._points] for part in parts], np.float64)

    def _in_steps(self, rows: Sequence[int], values: dict[int, int], *, has_constant: bool) -> Sums | None:
        """So many bytes for each step, such as for each pair of rows of a picture, and a constant if there is one."""
        parts, counts = self._stepped
        wanted, counts = np.array([values[row] for row in rows], np.float64), counts[:, list(rows)]
        if len(rows) < 2 + 2 * has_constant:
            return None
        low, high = counts.argmin(1)[:, None], counts.argmax(1)[:, None]
        least = np.take_along_axis(counts, low, 1) if has_constant else 0.0
        first = wanted[low] if has_constant else 0.0
        span = np.take_along_axis(counts, high, 1) - least
        each = np.rint((wanted[high] - first) / np.where(span, span, np.inf))
        is_equal = (each * (counts - least) + first == wanted).all(1) & (each[:, 0] > 0)
        is_equal &= (np.diff(np.sort(counts, 1), axis=1) > 0).sum(1) >= min(2, len(rows) - 1)
        for row in np.flatnonzero(is_equal).tolist():
            constant = round(float(np.ravel(first - each[row] * least)[row])) if has_constant else 0
            part = replace(parts[row], times=int(each[row, 0]))
            return ((part, *((Part(((constant, self._exponents[0]),)),) if constant else ())),)
        return None

    def _least_of_two(self, rows: Sequence[int], values: dict[int, int]) -> Sums | None:
        """Two sums, of which the smaller one counts: what a kernel takes up to the number of its blocks."""
        for powers in self._powers[1:]:
            order = sorted(rows, key=lambda row: powers[row])
            for cut in range(2, len(order) - 1):
                below, above = self._sum(order[:cut], values), self._sum(order[cut:], values)
                if below is not None and above is not None:
                    both = below + above
                    if all(law.smallest(both, self._points[row]) == values[row] for row in rows):
                        return both
        return None

    def _near(self, rows: Sequence[int], values: dict[int, int]) -> Part:
        """The sum nearest to the values, of two terms at most that only add."""
        wanted = np.array([values[row] for row in rows], np.float64)
        if len(rows) == 1:  # in proportion to all sizes, which a run of another program may contradict
            most = len(self._exponents[0]) * (1,)
            return Part(((values[rows[0]], most),), law.power(self._points[rows[0]], most))
        best, least = Part(((max(values.values()), self._exponents[0]),)), math.inf
        for num_terms in range(1, min(2, len(rows)) + 1):
            for inverse, matrix, chosen in self._systems_of(tuple(rows), num_terms):
                factors = inverse @ wanted
                error = float(np.abs(matrix @ factors - wanted).max())
                if error < least and factors.min() >= 0:
                    best, least = self._part((factors * 1024).tolist(), chosen, 1024), error
        return best
