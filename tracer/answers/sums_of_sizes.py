"""Sums of products of sizes, found from their values at a few sizes, and rules by which one of several counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise, product

import numpy as np

from tracer.allocator import law
from tracer.allocator.law import Choice, Part, Sizes, Sum
from tracer.arrays import Floats

_MOST_TERMS, _MOST_CASES = 3, 3
_MANY = 4
"""Points at which a sum is the value, though others have another one: fewer may be so by chance."""
_DIVISORS = tuple(1 << power for power in range(7))
"""Divisors of the factors of a sum: packed bits take an eighth of a byte."""
_STEPS = tuple(1 << power for power in range(1, 14))
"""Numbers of elements that kernels take at a time, or to which they align."""
_CONSTANT, _REST = "constant", "rest"
_MOST_ALIKE = 50
"""Most sums that are looked at of those that go through two points."""
Values = tuple[int | None, ...]


@dataclass(frozen=True)
class Solved:
    """Numbers of some runs as one sum, or as one of several."""

    cases: tuple[Sum, ...]
    of_row: Values  # The case of each run
    rule: int | None  # `LEAST` or `GREATEST`; None where a choice says which case counts
    is_exact: bool


class Solver:
    """Finds sums of products of sizes that are some numbers at some points."""

    def __init__(self, points: Sequence[Sizes]) -> None:
        self._points = list(points)
        self._exponents = exponents_of(len(self._points[0]))
        self._powers = [[law.power(point, each) for point in self._points] for each in self._exponents]
        self._solved: dict[Values, Solved] = {}
        self._said: dict[tuple[Values, tuple[int, ...]], frozenset[tuple[int, ...]]] = {}
        self._systems: dict[tuple[tuple[int, ...], int], list[tuple[Floats, Floats, tuple[int, ...]]]] = {}

    def solve(self, values: Values) -> Solved:
        """Return sums that are the value at each point that has one.

        They are exact if there are more points than a sum has terms; else the sums go near them.
        """
        if values not in self._solved:
            self._solved[values] = self._solve({row: value for row, value in enumerate(values) if value is not None})
        return self._solved[values]

    def said(self, values: Values, rows: tuple[int, ...]) -> frozenset[tuple[int, ...]]:
        """Return what each of the simplest sums that have all these values is at some points; equal ones stay so."""
        if (values, rows) not in self._said:
            known = {row: value for row, value in enumerate(values) if value is not None}
            equal = {(value,) * len(rows) for value in known.values()}
            sizes = {tuple(each.at(self._points[row]) for row in rows) for each in self._whole(known)}
            self._said[values, rows] = frozenset(equal if len(equal) == 1 else sizes)
        return self._said[values, rows]

    def _solve(self, values: Mapping[int, int]) -> Solved:
        cases, left = list[tuple[Sum, Sequence[int]]](), dict(values)
        while left:
            sums: Sequence[Sum] = self._whole(left)
            rows = tuple(left)
            if not sums and len(cases) + 1 < _MOST_CASES:  # else the sum that most of them have
                sums, rows = self._in_steps(left, list(combinations(left, 2)), _CONSTANT, least=_MANY)
            if not sums:
                break
            cases.append((sums[0], rows))
            left = {row: value for row, value in left.items() if row not in rows}
        shape = self._shape(values)
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
            return float(np.std([math.log(value / powers[row]) for row, value in values.items()]))

        if len(values) == 1:
            return Part(1, (1,) * len(self._exponents[0]))
        return Part(1, min(zip(self._powers, self._exponents, strict=True), key=lambda each: spread(each[0]))[1])

    def _whole(self, values: Mapping[int, int]) -> list[Sum]:
        """Sums that have all values, as simple as there are any."""
        first, *others = values
        if len(set(values.values())) == 1 and others:
            return [Sum((Part(values[first], self._exponents[0]),))]
        pairs, number = [(first, row) for row in others], len(values)
        return (
            self._in_steps(values, pairs, "", least=max(2, number))[0]
            or self._sums(values)
            or self._in_steps(values, pairs, _CONSTANT, least=max(3, number))[0]
            or self._in_steps(values, pairs, _REST, least=max(4, number))[0]
        )

    def _sums(self, values: Mapping[int, int]) -> list[Sum]:
        """Sums of the fewest terms that have these values at these points."""
        rows, wanted = tuple(values), np.array([*values.values()], np.float64)
        for num_terms in range(1, min(_MOST_TERMS, len(rows) - 1) + 1):
            sums = []
            for inverse, matrix, chosen in self._systems_of(rows, num_terms):
                factors = inverse @ wanted
                if np.abs(matrix @ factors - wanted).max() < 1:
                    for divisor in _DIVISORS:
                        terms = zip(chosen, np.rint(factors * divisor).tolist(), strict=True)
                        parts = (Part(int(factor), self._exponents[term]) for term, factor in terms if factor)
                        found = Sum(tuple(parts), divisor)
                        times = [sum(part.at(self._points[row]) for part in found.parts) for row in rows]
                        if times == [divisor * value for value in values.values()]:
                            sums.append(found)
                            break
            if sums:
                return sums
        return []

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

    @cached_property
    def _products(self) -> Floats:
        """The same products as they are, in no steps."""
        parts = map(_in_no_steps, self._stepped[0])
        return np.array([[part.at(point) for point in self._points] for part in parts], np.float64)

    def _in_steps(
        self, values: Mapping[int, int], pairs: Sequence[tuple[int, int]], more: str, *, least: int
    ) -> tuple[list[Sum], tuple[int, ...]]:
        """So many bytes for each step, such as for each pair of rows of a picture, and what there is more.

        Args:
            pairs: Points from which the two numbers are taken.
            more: Nothing, a constant, or the product as it is: the last of equal pieces takes what the others leave.
            least: Points at which that has to be the value.

        Returns:
            Sums that are the value at the most points, and these.
        """
        rows, wanted = np.array([*values]), np.array([*values.values()], np.float64)
        parts, counts = self._stepped
        others = self._products if more == _REST else np.ones_like(counts)
        best, best_rows = list[Sum](), rows[:0]
        for a, b in pairs:
            span = counts[:, b] * others[:, a] - counts[:, a] * others[:, b]
            times = np.rint((values[b] * others[:, a] - values[a] * others[:, b]) / np.where(span, span, np.inf))
            factors = np.rint((values[a] - times * counts[:, a]) / others[:, a])
            is_equal = times[:, None] * counts[:, rows] + factors[:, None] * others[:, rows] == wanted
            is_asked = {"": (times > 0) & (factors == 0), _CONSTANT: (times > 0) & (factors >= 0), _REST: factors > 0}
            numbers = is_equal.sum(1) * is_asked[more]
            for number in np.argsort(-numbers, kind="stable")[:_MOST_ALIKE].tolist():
                same = rows[is_equal[number]]
                if numbers[number] < max(least, len(best_rows)):
                    break
                if len(np.unique(counts[number, same])) >= 2 + bool(more):
                    if len(same) > len(best_rows):
                        best, best_rows = [], same
                    part = parts[number]
                    other = _in_no_steps(part) if more == _REST else Part(1, self._exponents[0])
                    terms = (part, int(times[number])), (other, int(factors[number]))
                    found = Sum(tuple(replace(each, times=factor) for each, factor in terms if factor))
                    if found not in best and np.array_equal(same, best_rows):
                        best.append(found)
        return best, tuple(best_rows.tolist())


def _in_no_steps(part: Part) -> Part:
    """The product of sizes that a part counts in steps."""
    counted = part.counted or part.of
    times = part.exponent if part.counted else 0
    return Part(1, tuple(a + times * b for a, b in zip(part.of, counted, strict=True)))


def rules_of(cases: Values, points: Sequence[Sizes]) -> list[Choice]:
    """Return rules that give each run its case, the likeliest first; if there are none, a choice without a rule.

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
    return [Choice()]


def exponents_of(num_sizes: int) -> list[Sizes]:
    """Return exponents of the products of which laws are made, simple ones first."""
    exponents = (each for each in product(range(3), repeat=num_sizes) if sum(each) <= 3)
    return sorted(exponents, key=lambda each: (sum(each), max(each)))
