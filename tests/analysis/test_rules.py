"""The first rule that holds: by hand, and beside a loop over blocks and rules."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.kinds import Evidence, Kind
from tracer.analysis.rules import Rule, first_that_holds

Facts = list[int]  # one number a block


def holds_for(*numbers: int) -> Rule[Facts]:
    """A rule that names blocks of these numbers by the kind of the first one."""
    return Rule(Evidence(numbers[0]), Kind(numbers[0]), lambda facts: np.isin(facts, numbers))


def test_the_first_that_holds_decides() -> None:
    rules = [
        holds_for(1, 2),
        holds_for(3, 2, 1),
        Rule(Evidence(5), lambda facts: np.asarray(facts), lambda f: np.isin(f, 6)),
    ]
    kind, evidence = first_that_holds(rules, [2, 3, 6, 7], otherwise=Evidence.OUTSIDE)
    assert kind.tolist() == [1, 3, 6, Kind.UNKNOWN]
    assert evidence.tolist() == [1, 3, 5, Evidence.OUTSIDE]


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), max_size=5),
    st.lists(st.integers(0, 9), max_size=8),
)
def test_like_a_loop(numbers: list[list[int]], facts: list[int]) -> None:
    kind, evidence = first_that_holds([holds_for(*each) for each in numbers], facts, otherwise=Evidence.UNPROVED)
    first = [next((each[0] for each in numbers if one in each), None) for one in facts]
    assert kind.tolist() == [Kind.UNKNOWN if one is None else one for one in first]
    assert evidence.tolist() == [Evidence.UNPROVED if one is None else one for one in first]
