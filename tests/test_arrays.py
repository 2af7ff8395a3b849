"""A letter in brackets, as in `[E]`, names one table in every docstring and comment: the legend of `tracer.arrays`."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer import arrays

ROOT = Path(__file__).resolve().parent.parent
LETTER = re.compile(r"(?<![\w\])])\[([A-Z])(?:,[^\]]*| \+ 1)?\]")
# Their tables are named in words: they have other entries, segments and stacks than a recording.
IN_WORDS = ("tracer/snapshot/", "tracer/allocator/", "tracer/analysis/snapshots/")


def letters(source: str) -> Iterator[str]:
    """Of all docstrings, those of attributes too, and of comments, which describe fields."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from LETTER.findall(node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from LETTER.findall(token.string)


def test_the_legend_has_every_letter_once() -> None:
    legend = re.findall(r"\[([A-Z])\] \w", arrays.__doc__ or "")
    assert legend and len(legend) == len(set(legend))
    used: set[str] = set()
    for path in ROOT.glob("tracer/**/*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name != "tracer/arrays.py":
            found = set(letters(path.read_text("utf-8")))
            assert found <= (set() if name.startswith(IN_WORDS) else set(legend)), name
            used |= found
    assert used == set(legend), "of what is in no docstring, the legend says nothing"


def test_a_column_at_rows_has_another_value_where_there_is_no_row() -> None:
    column, rows = np.array([5, 7]), np.array([1, -1, 0])
    assert arrays.at(column, rows, -3).tolist() == [7, -3, 5]
    assert arrays.at(column[:0], np.array([-1]), 2).tolist() == [2]
    assert arrays.at(np.array([True]), np.array([-1, 0]), False).dtype == np.bool_


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(-1, 5), st.integers(0, 6)), max_size=20))
def test_what_is_in_use_is_what_a_plain_loop_finds(drawn: list[tuple[int, int, int]]) -> None:
    blocks = [(size, begin, max(begin, end)) for size, begin, end in drawn]
    expected = [sum(size for size, begin, end in blocks if begin <= at < end) for at in range(-1, 6)]
    size, begin, end = np.array(blocks, np.int64).reshape(-1, 3).T
    assert arrays.in_use(size, begin, end, 6).tolist() == expected


def test_rows_of_equal_keys_are_one_group_in_the_order_of_their_first_rows() -> None:
    asked: list[tuple[int, bool]] = []

    def sign(value: int, is_odd: bool) -> str:
        asked.append((value, is_odd))
        return "negative" if value < 0 else "odd" if is_odd else "even"

    value = np.array([4, -1, 3, -2, 4, -1])
    groups = arrays.grouped((value, value % 2 == 1), sign)
    assert groups.keys == ("even", "negative", "odd")
    assert groups.of_row.tolist() == [0, 1, 2, 1, 0, 1]
    assert (groups.sums(value), groups.counts()) == ([8, -4, 3], [2, 3, 1])
    assert asked == [(4, False), (-1, True), (3, True), (-2, False)]  # once each, in the order of their rows
    nothing = arrays.grouped((value[:0],), int)
    assert (nothing.keys, nothing.of_row.tolist(), nothing.counts()) == ((), [], [])


def test_columns_of_wide_values_are_grouped_as_narrow_ones_are() -> None:
    random = np.random.default_rng(0)
    narrow = random.integers(0, 3, (4, 500))
    wide = [random.integers(-(1 << 40), 1 << 40, 3)[column] for column in narrow]
    groups = arrays.grouped(wide, lambda *values: values)
    assert groups.of_row.tolist() == arrays.grouped(list(narrow), lambda *values: values).of_row.tolist()
    assert [groups.keys[group] for group in groups.of_row.tolist()] == list(zip(*np.stack(wide).tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Named(arrays.ColumnTable):
    """Two columns."""

    size: arrays.Ints
    is_new: arrays.Bools


def test_a_table_gives_rows_and_goes_on_with_those_of_another() -> None:
    table = Named(np.array([5, 7, 9]), np.array([True, False, True]))
    some = table.take(table.is_new).followed_by(table.take(slice(1, 2)))
    assert (some.size.tolist(), some.is_new.tolist(), len(some)) == ([5, 9, 7], [True, True, False], 3)
    assert Named.names() == ("size", "is_new")
    with pytest.raises(ValueError, match="Named differ in length"):
        Named(np.array([5]), np.array([True, False]))
