"""Stacks of one version of a program in another one: by hand, and laws of any pairing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.snapshots.stack_matching import differing, match_stacks

A, B, C, D = "f (a.py)", "g (a.py)", "h (a.py)", "main (t.py)"


@pytest.mark.parametrize(
    ("before", "after", "is_same"),
    [
        ((A, B), (A, B), True),
        ((A, B), (A, B, D), True),  # an outer frame more
        ((A, B, C, D), (A, B), True),  # two fewer
        ((A, B), ("f (b.py)", "g (b.py)"), True),  # another file
        ((A, B, C, D), (A, D), True),  # half of the shorter one
        ((A, B, C, D), (A, C, B, D), False),  # a quarter
        ((A, B), (B, A), False),
        ((A,), (B,), False),
    ],
)
def test_what_counts_as_the_same_code(before: tuple[str, ...], after: tuple[str, ...], is_same: bool) -> None:
    found = match_stacks([("k", before)], [("k", after)])
    assert found == ({("k", before): ("k", after)} if is_same else {})


def test_another_kind_is_no_counterpart() -> None:
    assert match_stacks([("k", (A, B))], [("l", (A, B))]) == {}


def test_the_longest_inner_part_comes_first() -> None:
    after = [("k", (A, C, D)), ("k", (A, B, D))]
    assert match_stacks([("k", (A, B, C))], after) == {("k", (A, B, C)): ("k", (A, B, D))}


def test_the_frame_that_differs() -> None:
    assert differing((A, B), (A, C)) == (B, C)
    assert differing((A,), (A, D)) == ("", D)
    assert differing((A,), (A,)) == ("", "")


KEYS = st.lists(
    st.tuples(st.sampled_from("kl"), st.lists(st.sampled_from(["f (a)", "f (b)", "g (a)", "h (c)"]), max_size=4)),
    max_size=12,
)


@given(before=KEYS, after=KEYS)
def test_pairs_are_of_one_kind_and_each_is_in_one(
    before: list[tuple[str, list[str]]], after: list[tuple[str, list[str]]]
) -> None:
    lefts, rights = ([(kind, tuple(stack)) for kind, stack in side] for side in (before, after))
    pairs = match_stacks(lefts, rights)
    assert len(set(pairs.values())) == len(pairs)
    assert set(pairs) <= set(lefts) and set(pairs.values()) <= set(rights)
    assert all(old[0] == new[0] for old, new in pairs.items())
    assert all(pairs[key] == key for key in lefts if key in rights)
