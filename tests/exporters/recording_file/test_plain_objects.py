"""Plain objects through columns: equal, of the same types, and one object where it was one."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.snapshot.dumps import block, entry, frame, segment, snapshot
from tracer.errors import RecordingError
from tracer.exporters.recording_file.checked_columns import Columns
from tracer.exporters.recording_file.plain_objects import MAX_VISITS, object_columns, object_from

SCALAR = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=5))
KEY = st.one_of(st.integers(), st.text(max_size=3))
OBJECT = st.recursive(
    SCALAR,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.dictionaries(KEY, inner, max_size=4)
    ),
    max_leaves=30,
)


def again(root: Any) -> Any:
    return object_from(Columns(object_columns("x", root)), "x")


@given(root=OBJECT)
def test_what_comes_back_is_equal_and_of_the_same_types(root: Any) -> None:
    assert repr(again(root)) == repr(root)


def test_a_snapshot_pickles_to_the_same_bytes() -> None:
    """What is one object, such as a stack that many entries have, stays one; equal texts stay as many as they are."""
    shared = [frame("f"), frame("g")]
    trace = [entry("alloc", 4096 * n, 512, frames=shared) for n in range(1, 20)]
    raw = snapshot(trace, [segment(4096, 512, [block(4096, 300)])])
    for one in (raw, pickle.loads(pickle.dumps(raw))):
        assert pickle.dumps(again(pickle.loads(pickle.dumps(one)))) == pickle.dumps(pickle.loads(pickle.dumps(one)))
    assert len(object_columns("x", raw)["x.code"]) < 150


def test_numbers_that_no_column_holds() -> None:
    numbers = [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**100, -0.0, math.inf, True, 1]
    assert list(map(repr, again(numbers))) == list(map(repr, numbers))
    assert math.isnan(again(math.nan))


def test_a_stack_of_any_depth() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    found = again(deep)
    depth = 0
    while found:
        found, depth = found[0], depth + 1
    assert depth == 100_000


@pytest.mark.parametrize("odd", [b"bytes", {1, 2}, object(), np.int64(5), 1j])
def test_what_is_not_plain_is_a_mistake_of_the_caller(odd: Any) -> None:
    with pytest.raises(TypeError):
        object_columns("x", [odd])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"x.items": [0, 1, 2, 3]}, "hold what is not there"),  # the list would hold itself
        ({"x.items": [0, 1, 2, 9]}, "outside"),
        ({"x.items": [0, 1, 2]}, "hold what is not there"),
        ({"x.items": [0, 1, 2, 2, 0]}, "not complete"),
        ({"x.value": [7, 5, 2, 2]}, "a text that is not there"),
        ({"x.value": [0, 5, 2, -2]}, "hold what is not there"),
        ({"x.value": [0, 5, 2]}, "rows"),
        ({"x.code": [6, 3, 8, 99]}, "outside"),
        ({"x.code": [4, 3, 8, 7]}, "a number that is none"),
        ({"x.code": [6, 3, 8, 9]}, "hold what is not there"),
        ({"x.code": [], "x.value": [], "x.items": []}, "not complete"),
    ],
)
def test_columns_of_no_object_are_refused(change: dict[str, list[int]], complaint: str) -> None:
    columns = object_columns("x", [("a", 5)] * 2) | {key: np.array(rows, np.int64) for key, rows in change.items()}
    with pytest.raises(RecordingError, match=complaint):
        object_from(Columns(columns), "x")


def test_what_holds_itself_over_and_over_is_refused() -> None:
    """Forty lists, each of the one before it twice: 2**40 objects for whoever follows every pointer."""
    many: Any = []
    for _ in range(40):
        many = [many, many]
    assert MAX_VISITS < 2**40
    with pytest.raises(RecordingError, match="without end"):
        again(many)


def test_keys_are_texts_and_numbers() -> None:
    with pytest.raises(RecordingError, match="a key"):
        again({(1, 2): 3})
