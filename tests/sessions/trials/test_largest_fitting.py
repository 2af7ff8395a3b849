"""The largest size that fits: found for any shape of growth, in few trials, each told as it comes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tracer.errors import TracerError
from tracer.sessions.trials.largest_fitting import Trial, fitting_micro_batches, largest_fitting

GIB = 1 << 30
GROWTHS: dict[str, Callable[[int], int]] = {
    "a line": lambda size: GIB + size * 130_000_000,
    "a square": lambda size: GIB + size**2 * 1_000_000,
    "steps": lambda size: GIB + -(-size // 16) * 2_000_000_000,
}


def _search(growth: Callable[[int], int], start: int, *, step: int = 1, most: int = 1 << 20) -> tuple[int, list[int]]:
    told: list[int] = []
    usable_bytes = 24 * GIB

    def attempt(size: int) -> Trial:
        reserved_bytes = growth(size) // 64 * 67  # gaps, of which giving back the cache saves a half
        fits = (growth(size) + reserved_bytes) // 2 <= usable_bytes
        return Trial(fits, growth(size), reserved_bytes)

    largest = largest_fitting(
        attempt, usable_bytes, start, step=step, most=most, tell=lambda size, trial: told.append(size)
    )
    assert largest == 0 or attempt(largest).fits
    assert largest + step > most or not attempt(largest + step).fits
    return largest, told


@pytest.mark.parametrize("growth", GROWTHS.values(), ids=GROWTHS)
@pytest.mark.parametrize("start", [1, 8, 100_000])
@pytest.mark.parametrize("step", [1, 32])
def test_the_largest_fits_and_the_next_does_not(growth: Callable[[int], int], start: int, step: int) -> None:
    largest, told = _search(growth, start, step=step)
    assert largest in told or largest == 0
    assert len(told) <= 26 and len(set(told)) == len(told)


def test_a_line_takes_few_trials() -> None:
    assert len(_search(GROWTHS["a line"], 8)[1]) <= 8


def test_no_more_is_tried_than_there_may_be() -> None:
    assert _search(GROWTHS["a line"], 8, most=40)[0] == 40


def test_a_size_that_changes_nothing_is_an_error() -> None:
    with pytest.raises(TracerError, match="does not change"):
        _search(lambda size: GIB, 8)


def test_micro_batches_are_of_one_size_that_divides_the_batch() -> None:
    asked: list[tuple[int, int]] = []

    def attempt(size: int, number: int) -> Trial:
        asked.append((size, number))
        return Trial(size <= 6, 1, 1)

    assert fitting_micro_batches(attempt, 24, 10) == (6, 4)
    assert asked == [(8, 3), (6, 3)]
