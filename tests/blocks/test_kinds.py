"""Each kind has words, and a meaning for whoever reads its name for the first time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.arrays import Bools, Ints
from tracer.blocks.kinds import OR, Evidence, Kind, Rule, first_that_holds, meaning_of


def test_each_kind_has_a_meaning_of_its_own_that_fits_beside_its_bytes() -> None:
    meanings = [kind.meaning for kind in Kind]
    assert len(set(meanings)) == len(Kind)
    assert max(map(len, meanings)) <= 28


def test_a_meaning_is_found_by_name_and_by_words() -> None:
    for kind in Kind:
        assert meaning_of(kind.name) == meaning_of(kind.words) == kind.meaning
    assert meaning_of("stream 7") == ""


@dataclass(frozen=True)
class Numbers:
    """One number from 0 to 9 a block, and a column of truths for each: whether it is this one."""

    number: Ints

    def __len__(self) -> int:
        return len(self.number)

    def __getattr__(self, name: str) -> Bools:
        return np.asarray(self.number == int(name.removeprefix("is_")), np.bool_)


def numbers(*values: int) -> Numbers:
    return Numbers(np.array(values, np.int64))


def holds_for(*values: int) -> Rule:
    """A rule that names blocks of these numbers by the kind of the first one."""
    return Rule(Evidence(values[0]), Kind(values[0]), (OR.join(f"is_{value}" for value in values),))


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ((), [1, 2, 3]),
        (("is_2",), [2]),
        (("not is_2",), [1, 3]),
        (("is_2 or is_3",), [2, 3]),
        (("is_2 or is_3", "not is_3"), [2]),
        (("not is_2 or not is_3",), [1, 2, 3]),
        (("is_1", "is_2"), []),
    ],
)
def test_conditions(conditions: tuple[str, ...], found: list[int]) -> None:
    blocks = numbers(1, 2, 3)
    assert blocks.number[Rule(Evidence.UNPROVED, Kind.UNKNOWN, tuple(conditions)).holds(blocks)].tolist() == found


def test_the_first_that_holds_decides() -> None:
    rules = [holds_for(1, 2), holds_for(3, 2, 1), Rule(Evidence(5), "number", ("is_6",))]
    kind, evidence = first_that_holds(rules, numbers(2, 3, 6, 7), otherwise=Evidence.OUTSIDE)
    assert kind.tolist() == [1, 3, 6, Kind.UNKNOWN]
    assert evidence.tolist() == [1, 3, 5, Evidence.OUTSIDE]


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=5),
    st.lists(st.integers(0, 9), max_size=8),
)
def test_like_a_loop(wanted: list[list[int]], blocks: list[int]) -> None:
    rules = [holds_for(*values) for values in wanted]
    kind, evidence = first_that_holds(rules, numbers(*blocks), otherwise=Evidence.UNPROVED)
    first = [next((values[0] for values in wanted if block in values), None) for block in blocks]
    assert kind.tolist() == [Kind.UNKNOWN if number is None else number for number in first]
    assert evidence.tolist() == [Evidence.UNPROVED if number is None else number for number in first]
