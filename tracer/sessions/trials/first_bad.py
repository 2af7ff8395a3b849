"""The first bad one of many points in order, such as commits, by bisection; some points may not be known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FirstBad:
    """The border between good and bad points."""

    good: int  # Index of the last point known to be good
    bad: int  # Index of the first point known to be bad
    num_asked: int  # Points that were asked about, the two ends left out


def find_first_bad(num_points: int, is_bad: Callable[[int], bool | None]) -> FirstBad:
    """Find the first bad point, where the first point is good and the last bad.

    Args:
        num_points: At least 2.
        is_bad: Whether the point of an index is bad; None where that cannot be found out. Neither end is asked.
    """
    good, bad, num_asked = 0, num_points - 1, 0
    unknown: set[int] = set()
    while open_points := [index for index in range(good + 1, bad) if index not in unknown]:
        num_unknown = sum(good < index < bad for index in unknown)
        index = open_points[int(len(open_points) * _fraction(num_unknown + 1))]
        num_asked += 1
        answer = is_bad(index)
        if answer is None:
            unknown.add(index)
        elif answer:
            bad = index
        else:
            good = index
    return FirstBad(good, bad, num_asked)


def _fraction(number: int) -> float:
    """1/2, 1/4, 3/4, 1/8, 5/8, ...: unknown points lie together, and the next one asked is far from the last.

    Source:
        The sequence of van der Corput for base 2.
    """
    fraction, weight = 0.0, 0.5
    while number:
        fraction += weight * (number & 1)
        number >>= 1
        weight /= 2
    return fraction
