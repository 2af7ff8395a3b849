"""Kinds and their words, and rules as rows of a table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.arrays import Bool, Int, Ints, PerBlock
from tracer.blocks.kinds import Evidence, Kind, meaning_of
from tracer.blocks.rules import AnyOf, Condition, FactOf, Not, Rule, apply_rules

# ---- A table of rules: conditions on facts, and the first rule that holds.


@dataclass(frozen=True, eq=False)
class Numbers:
    """A number of each block, and whether it is one of three."""

    number: Ints

    def __len__(self) -> int:
        return len(self.number)

    same = FactOf["Numbers", Int](lambda f: f.number)
    is_1 = FactOf["Numbers", Bool](lambda f: f.number == 1)
    is_2 = FactOf["Numbers", Bool](lambda f: f.number == 2)
    is_3 = FactOf["Numbers", Bool](lambda f: f.number == 3)


ONE, TWO, THREE = Numbers.is_1, Numbers.is_2, Numbers.is_3


class Is:
    """The condition of one number."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.name = wanted, f"is_{wanted}"

    def __call__(self, facts: Numbers, /) -> PerBlock[Bool]:
        """[B]."""
        return np.asarray(facts.number == self.wanted, np.bool_)


def numbers(*values: int) -> Numbers:
    return Numbers(np.array(values, np.int64))


def holds_for(*values: int) -> Rule[Numbers]:
    """A rule that names blocks of these numbers by the kind of the first one."""
    return Rule(Evidence(values[0]), Kind(values[0]), (AnyOf(*map(Is, values)),))


@pytest.mark.parametrize(
    ("conditions", "found", "names"),
    [
        ((), [1, 2, 3], []),
        ((TWO,), [2], ["is_2"]),
        ((Not(TWO),), [1, 3], ["not is_2"]),
        ((AnyOf(TWO, THREE),), [2, 3], ["is_2 or is_3"]),
        ((AnyOf(TWO, THREE), Not(THREE)), [2], ["is_2 or is_3", "not is_3"]),
        ((AnyOf(Not(TWO), Not(THREE)),), [1, 2, 3], ["not is_2 or not is_3"]),
        ((ONE, TWO), [], ["is_1", "is_2"]),
    ],
)
def test_conditions(conditions: tuple[Condition[Numbers], ...], found: list[int], names: list[str]) -> None:
    blocks = numbers(1, 2, 3)
    assert blocks.number[Rule(Evidence.UNPROVED, Kind.UNKNOWN, conditions).holds(blocks)].tolist() == found
    assert [condition.name for condition in conditions] == names


def test_a_fact_is_computed_when_it_is_asked_for_and_once() -> None:
    blocks = numbers(1, 2)
    assert "is_1" not in vars(blocks)
    assert ONE(blocks) is blocks.is_1 and ONE(blocks).tolist() == [True, False]


def test_the_first_that_holds_decides() -> None:
    rules = [holds_for(1, 2), holds_for(3, 2, 1), Rule(Evidence(5), Numbers.same, (Is(6),))]
    kind, evidence = apply_rules(rules, numbers(2, 3, 6, 7))
    assert kind.tolist() == [1, 3, 6, Kind.UNKNOWN]
    assert evidence.tolist() == [1, 3, 5, Evidence.UNPROVED]


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=5),
    st.lists(st.integers(0, 9), max_size=8),
)
def test_like_a_loop(wanted: list[list[int]], blocks: list[int]) -> None:
    rules = [holds_for(*values) for values in wanted]
    kind, evidence = apply_rules(rules, numbers(*blocks))
    first = [next((values[0] for values in wanted if block in values), None) for block in blocks]
    assert kind.tolist() == [Kind.UNKNOWN if number is None else number for number in first]
    assert evidence.tolist() == [Evidence.UNPROVED if number is None else number for number in first]


# ---- Each kind has words, and a meaning for whoever reads its name for the first time.


def test_each_kind_has_a_meaning_of_its_own_that_fits_beside_its_bytes() -> None:
    meanings = [kind.meaning for kind in Kind]
    assert len(set(meanings)) == len(Kind)
    assert max(map(len, meanings)) <= 28


def test_a_meaning_is_found_by_name_and_by_words() -> None:
    for kind in Kind:
        assert meaning_of(kind.name) == meaning_of(kind.words) == kind.meaning
    assert meaning_of("stream 7") == ""
