"""Parameters and optimizer state from before a recording, by hand; `tests/on_null_gpu` has those of trainings."""

from __future__ import annotations

import numpy as np
import pytest

from tracer.analysis.snapshots.sizes import first_of_each, sets_of_sizes
from tracer.arrays import Bools, Ints
from tracer.snapshot.columns import Segments


def ints(*numbers: int) -> Ints:
    return np.array(numbers, dtype=np.int64)


@pytest.mark.parametrize(
    ("sizes", "times", "of_sets", "of_parts"),
    [
        # Gradients: two of 40, one of 100.
        ([40] * 4 + [100] * 2, 2, [40, 100], []),
        ([40] * 6 + [100] * 3 + [7], 3, [40, 100], []),
        ([40] * 2 + [100], 0, [], []),  # parameters alone
        ([40] * 8 + [100] * 4, 0, [], []),  # state, and a copy of the weights or a third average
        ([40] * 6 + [100] * 2, 0, [], []),  # each says something else
        ([40] * 5 + [100] * 3, 0, [], []),  # 56 % of the gradients' bytes are there three times
        # The block of 100 has its parts' state, of 30 and 70.
        ([40] * 6 + [100] + [30, 70] * 2, 3, [40], [30, 70]),
        ([40] * 6 + [100] + [30, 70] * 2 + [9, 9, 8], 3, [40], [30, 70]),
        ([40] * 6 + [100] + [30, 71] * 2, 0, [], []),
        ([40] * 6 + [100] + [30, 70], 0, [], []),
    ],
)
def test_most_of_the_gradients_bytes_say_how_many_sets_there_are(
    sizes: list[int], times: int, of_sets: list[int], of_parts: list[int]
) -> None:
    found = sets_of_sizes(ints(*sizes), ints(40, 100), ints(2, 1))
    assert (found.times, found.sizes.tolist(), found.of_parts.tolist()) == (times, of_sets, of_parts)


def segments(*address: int, is_expandable: bool = False) -> Segments:
    number = len(address)
    flags: Bools = np.full(number, is_expandable)
    return Segments(
        ints(*address), ints(*[100] * number), ints(*[0] * number), flags & False, flags, np.full(number, -1, np.int32)
    )


def test_parameters_come_first_and_addresses_rise_but_for_those_of_the_hosts_mmap() -> None:
    chunk = 32 << 20
    size, addr = ints(9, 9, 5, 9, 9, 5), ints(0, 40, 80, chunk, chunk + 40, chunk + 80)
    rows = np.arange(6)
    assert sorted(first_of_each(rows, size, addr, 2, segments(0, chunk))) == [0, 1, 2]
    high = 0x7F00_0000_0000
    falling = segments(high, high + chunk)
    assert sorted(first_of_each(rows, size, addr + high, 2, falling)) == [3, 4, 5]
    growing = segments(high, high + chunk, is_expandable=True)
    assert sorted(first_of_each(rows, size, addr + high, 2, growing)) == [0, 1, 2]
    # Segments of one chunk of the driver's rise.
    in_one_chunk = ints(0, 40, 80, 100, 140, 180) + high
    assert sorted(first_of_each(rows, size, in_one_chunk, 2, segments(high, high + 100))) == [0, 1, 2]
