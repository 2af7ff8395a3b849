"""The walk over nested values: what it sees, what it is called, and where it stops."""

from __future__ import annotations

from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tracer.capture.objects.storage_observer import input_tensors
from tracer.nested import leaves

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
