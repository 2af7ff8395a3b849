"""The base modules of the package: columns, nested values, and units."""

from __future__ import annotations

import gc
import sys
import threading
from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tracer import arrays
from tracer.capture.objects.storage_observer import input_tensors
from tracer.collector import make_all_old, objects_with_type, one_look
from tracer.command_line import this_command
from tracer.nested import leaves
from tracer.units import GIB, KIB, MIB, format_bytes, format_growth, parse_count, parse_memory, parse_size, some

# ---- columns


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


# ---- the walk over nested values: what it sees, what it is called, and where it stops


Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True, slots=True)
class Graph:
    nodes: Any
    edges: Any = None


def places(value: object) -> list[str]:
    return [place for place, _ in leaves(value, Tensor, "batch")]


ONE = torch.ones(1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ONE, ["batch"]),
        ((ONE, [ONE, 3, None]), ["batch[0]", "batch[1][0]"]),
        (deque([0, ONE]), ["batch[1]"]),
        (OrderedDict(ids=ONE, text="abc"), ["batch.ids"]),
        (UserDict(ids=ONE), ["batch.ids"]),
        (Pair(ONE, (0, ONE)), ["batch.left", "batch.right[1]"]),
        (Graph(Graph([ONE]), {"edge": ONE}), ["batch.nodes.nodes[0]", "batch.edges.edge"]),
        (torch.nn.utils.rnn.pack_sequence([ONE]), ["batch.data", "batch.batch_sizes"]),
        (torch.return_types.max((ONE, ONE)), ["batch[0]", "batch[1]"]),
        (Graph, []),
        ("abc", []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_seen_and_where(value: object, expected: list[str]) -> None:
    assert places(value) == expected


@pytest.mark.slow  # transformers' import; a UserDict is seen above
def test_a_batch_encoding_of_transformers_is_seen() -> None:
    transformers = pytest.importorskip("transformers")
    encoding = transformers.BatchEncoding({"input_ids": ONE, "attention_mask": ONE})
    assert places(encoding) == ["batch.input_ids", "batch.attention_mask"]
    first = next(input_tensors([encoding]))
    assert first[1] == "batch[0].input_ids" and first[2] is ONE


def test_what_holds_itself_is_walked_once_and_what_comes_twice_twice() -> None:
    circle: list[object] = [ONE]
    circle.append(circle)
    assert places(circle) == ["batch[0]"]
    shared = [ONE]
    assert places([shared, shared]) == ["batch[0][0]", "batch[1][0]"]


def test_what_is_looked_for_is_not_looked_into() -> None:
    assert [found for _, found in leaves([Graph(Graph(1))], Graph)] == [Graph(Graph(1))]


NESTED = st.recursive(
    st.integers(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Graph, inner, inner),
    ),
    max_leaves=12,
)


def oracle(value: Any) -> list[int]:
    """By hand, without places."""
    if isinstance(value, int):
        return [value]
    if isinstance(value, Graph):
        return oracle(value.nodes) + oracle(value.edges)
    return [leaf for inner in (value.values() if isinstance(value, dict) else value) for leaf in oracle(inner)]


@given(NESTED)
def test_every_leaf_comes_once_in_order_under_a_place_of_its_own(value: object) -> None:
    found = list(leaves(value, int, "x"))
    assert [leaf for _, leaf in found] == oracle(value)
    assert len({place for place, _ in found}) == len(found)


# ---- sizes for people, there and back; numbers with their nouns


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (MIB - 1, "1.00 MiB"),
        (-3 * GIB, "-3.00 GiB"),
    ],
)
def test_sizes_are_in_the_largest_unit_that_keeps_them_at_one(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(KIB, 900 * GIB))
def test_a_size_that_is_read_back_is_the_same_to_its_places(size: int) -> None:
    assert parse_size(format_bytes(size)) == pytest.approx(size, rel=0.006)


@pytest.mark.parametrize(
    ("text", "size"), [("24GiB", 24 * GIB), ("500 MiB", 500 * MIB), ("1.5g", 3 * GIB // 2), ("7", 7)]
)
def test_sizes_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1GiB", "GiB", "1 XiB", "nan", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("text", ["65TiB", "999999999999999T"])
def test_a_size_that_no_device_has_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is more than 64\.00 TiB, the largest size here"):
        parse_size(text)


def test_a_count_is_a_whole_number_up_to_a_largest() -> None:
    assert [parse_count(text) for text in ("7", " -7", "1_000", "007")] == [7, -7, 1000, 7]
    assert parse_count("9", most=9) == 9
    for text in ("", "many", "1.5", "1e3", "--1"):
        with pytest.raises(ValueError, match="is not a whole number"):
            parse_count(text)
    for text in ("10", "-10", "9" * 5000):
        with pytest.raises(ValueError, match="is more than 9, the largest number here"):
            parse_count(text, most=9)


def test_one_has_no_s() -> None:
    assert [some(count, "block") for count in (0, 1, 2, 1000)] == ["0 blocks", "1 block", "2 blocks", "1,000 blocks"]
    assert [some(count, "cycle", "was/were") for count in (1, 3)] == ["1 cycle was", "3 cycles were"]


def test_several_of_a_noun() -> None:
    assert [some(2, noun) for noun in ("block", "entry", "retry", "way", "batch", "process")] == [
        "2 blocks", "2 entries", "2 retries", "2 ways", "2 batches", "2 processes",
    ]  # fmt: skip
    assert some(1, "entry", "has/have") == "1 entry has"


@pytest.mark.parametrize(("text", "size"), [("24GiB", 24 * GIB), ("80B", 80), (str(GIB), GIB)])
def test_memory_is_a_size(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["80", " 24 ", "1.5"])
def test_memory_of_a_few_bytes_lacks_its_unit(text: str) -> None:
    with pytest.raises(ValueError, match="has no unit"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("times", "text"),
    [(None, ""), (4.0, "x4"), (1.984, "x1.98"), (0.25, "x0.25"), (16.02, "x16"), (99.94, "x99.9"), (1234.5, "x1,234")],
)
def test_growth_has_three_places(times: float | None, text: str) -> None:
    assert format_growth(times) == text


# ---- how a process was called, as its results name it ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/home/me/bin/torch-timeline", "run", "a b.py"], "torch-timeline run 'a b.py'"),
        (["/home/me/tracer/__main__.py", "run"], "python -m tracer run"),
        (["train.py"], "train.py"),
    ],
)
def test_the_command_is_without_the_folder_of_the_program(
    argv: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", argv)
    assert this_command() == expected


# ---- objects of a type ----------------------------------------------------------------------------------------------


class Wanted:
    """A class whose objects are looked for."""


def test_a_look_for_objects_lets_other_threads_complete_their_tuples() -> None:
    """A list of all objects that exists while another thread makes a tuple ends that thread by a SystemError."""
    wanted, faults, is_over = Wanted(), list[BaseException](), threading.Event()

    def make_tuples() -> None:
        try:
            while not is_over.is_set():
                tuple(number for number in range(30))
        except SystemError as error:
            faults.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    maker = threading.Thread(target=make_tuples)
    maker.start()
    try:
        found = [objects_with_type((Wanted,)) for _ in range(30)]
    finally:
        is_over.set()
        maker.join()
        sys.setswitchinterval(before)
    assert faults == [] and all(each == [wanted] for each in found)


def test_within_one_look_objects_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found are objects of classes below, too; another class has a look of its own, and behind the block all have."""

    class Wanted:
        pass

    class Below(Wanted):
        pass

    looks, get_objects = list[int](), gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda _: looks.append(1) or get_objects())
    first, below = Wanted(), Below()
    with one_look((Wanted,)):
        assert {*objects_with_type((Wanted,))} == {first, below} and objects_with_type((Below,)) == [below]
        assert len(looks) == 1
        later = Below()
        assert objects_with_type((Below,)) == [below]
        objects_with_type((pytest.MonkeyPatch,))
        assert len(looks) == 2
    assert {*objects_with_type((Below,))} == {below, later} and len(looks) == 3


def test_what_the_program_has_frozen_stays_so_where_all_else_becomes_old(monkeypatch: pytest.MonkeyPatch) -> None:
    called = list[str]()
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, partial(called.append, name))
    for count in (1, 0):
        monkeypatch.setattr(gc, "get_freeze_count", lambda count=count: count)
        make_all_old()
    assert called == ["freeze", "unfreeze"]
