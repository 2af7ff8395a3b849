"""Counting sizes: by hand, and beside loops as plain as can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.snapshots.sizes import (
    as_many_as,
    copies_of,
    first_of_each,
    has_size_of,
    is_one_set,
    most_at_once,
    sets_of_sizes,
)
from tracer.arrays import Bools, Ints
from tracer.snapshot.columns import Segments

BLOCKS = st.lists(st.tuples(st.integers(1, 4), st.integers(-1, 9), st.integers(0, 9)), max_size=20)


@given(BLOCKS)
def test_the_most_at_once_is_what_a_loop_over_all_moments_finds(blocks: list[tuple[int, int, int]]) -> None:
    blocks = [(size, begin, max(begin, end)) for size, begin, end in blocks]
    table = np.array(blocks, dtype=np.int64).reshape(-1, 3)
    sizes, numbers = most_at_once(table[:, 0], table[:, 1], table[:, 2])
    assert sizes.tolist() == sorted({size for size, _, _ in blocks})
    for size, number in zip(sizes.tolist(), numbers.tolist(), strict=True):
        at_once = [sum(s == size and begin <= now < end for s, begin, end in blocks) for now in range(-1, 10)]
        assert number == max(at_once)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 20), st.integers(1, 20), st.integers(0, 2**40)), max_size=20)
)
def test_the_most_bytes_of_a_group_are_those_of_a_loop_over_all_moments(
    blocks: list[tuple[int, int, int, int]],
) -> None:
    group, begin, duration, amount = np.array(blocks, dtype=np.int64).reshape(-1, 4).T
    groups, most = most_at_once(group, begin, begin + duration, amount)
    assert groups.tolist() == sorted(set(group.tolist()))
    in_use = [
        {
            number: int(amount[(group == number) & (begin <= now) & (now < begin + duration)].sum())
            for number in range(4)
        }
        for now in range(-1, 41)
    ]
    assert most.tolist() == [max(at[number] for at in in_use) for number in groups.tolist()]


def test_state_beside_parameters_would_be_twice_as_many() -> None:
    # Of size 7 there are 2 gradients and 3 candidates: parameters. Of size 9 one gradient and 2 candidates: who knows.
    size = np.array([7, 7, 7, 9, 9, 5])
    candidates = np.array([True, True, True, True, True, True])
    found = as_many_as(candidates, size, np.array([7, 9]), np.array([2, 1]))
    assert found.tolist() == [True, True, True, False, False, False]
    assert not as_many_as(candidates, size, np.array([], dtype=np.int64), np.array([], dtype=np.int64)).any()


def test_only_candidates_count() -> None:
    size, candidates = np.array([7, 7, 7]), np.array([True, False, False])
    assert as_many_as(candidates, size, np.array([7]), np.array([1])).tolist() == [True, False, False]


def test_of_gradients_that_are_some_of_all_one_size_says_it_of_every_size() -> None:
    """In the middle of backward: the last layer's one of 7 has its gradient, and one of the three of 9."""
    size, candidates = np.array([70, 90, 90, 90]), np.ones(4, dtype=np.bool_)
    sizes, numbers = np.array([70, 90]), np.array([1, 1])
    assert as_many_as(candidates, size, sizes, numbers).tolist() == [True, False, False, False]
    assert as_many_as(candidates, size, sizes, numbers, are_some=True).all()
    # Twice as many of both, or a size that does not matter: state may be among them.
    twice = np.repeat(size, 2)
    assert not as_many_as(np.ones(8, dtype=np.bool_), twice, sizes, numbers, are_some=True).any()
    small = as_many_as(
        np.ones(3, dtype=np.bool_), np.array([1, 9000, 9000]), np.array([1, 9000]), numbers, are_some=True
    )
    assert small.tolist() == [True, False, False]


def test_what_a_step_has_let_go_of_counts_too() -> None:
    size, candidates = np.array([7, 7]), np.ones(2, dtype=np.bool_)
    assert as_many_as(candidates, size, np.array([7]), np.array([2])).all()
    assert not as_many_as(candidates, size, np.array([7]), np.array([2]), others=np.array([7, 7, 9])).any()


@pytest.mark.parametrize(
    ("sizes", "is_one"),
    [
        ([], False),
        ([5, 6, 7], False),  # each once: two volumes of a data set say nothing of weights
        ([5, 5, 6, 6, 6], True),  # twice and three times: not all of them copies
        ([5, 5, 6, 6], False),  # each twice: one may be the other's momentum
        ([5] * 3 + [6] * 9, False),  # parameters and two states
        ([5] * 3 + [6] * 9 + [8], False),  # one of a kind says nothing
        ([900] * 8 + [800] * 4 + [2] * 5, False),  # four copies, and one more small block
        ([900] * 48 + [800] * 24 + [2] * 25 + [7000] * 2, True),  # norms, an embedding and a head
    ],
)
def test_sizes_that_repeat_together_are_copies(sizes: list[int], is_one: bool) -> None:
    found = is_one_set(np.array(sizes, dtype=np.int64), np.array(sizes, dtype=np.int64), num_layers=0)
    assert bool(found.any()) is is_one


@pytest.mark.parametrize(
    ("copies", "num_layers", "named"),
    [
        (1, 8, [True] * 8 + [True] * 4 + [False, False]),
        (1, 4, [False] * 14),  # twice as many as layers: gradients or state are among them
        (4, 8, [False] * 56),  # parameters, gradients, two states
        (1, 30, [False] * 14),  # the calls are of something else
    ],
)
def test_a_model_has_as_many_large_blocks_as_layers(copies: int, num_layers: int, named: list[bool]) -> None:
    """Eight weights, four biases, and one each of what may be data: a buffer of a bias's size changes nothing."""
    sizes = np.array(([6400] * 8 + [10] * 4 + [7, 3]) * copies, dtype=np.int64)
    assert is_one_set(sizes, sizes, num_layers).tolist() == named
    more = np.append(sizes, 10)
    assert is_one_set(more, more, num_layers).tolist()[:-1] == named


def test_who_has_the_size_of_another() -> None:
    assert has_size_of(np.array([1, 2, 3]), np.array([3, 1])).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("candidates", "found"),
    [
        ([7, 7, 7, 9, 9, 9, 9, 9, 9], (3, 75)),  # three for the gradient of 7, and for the two of 9
        ([7, 7, 9, 9], (0, 0)),
        ([7, 9, 9, 5], (1, 25)),
        ([7, 7, 9, 9, 9], (0, 0)),
        ([], (0, 0)),
    ],
)
def test_how_many_there_are_for_each_gradient(candidates: list[int], found: tuple[int, int]) -> None:
    assert copies_of(np.array(candidates, dtype=np.int64), np.array([7, 9]), np.array([1, 2])) == found


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
