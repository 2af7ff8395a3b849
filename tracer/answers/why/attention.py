"""Attention that makes its scores as whole matrices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_smaller_blocks
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.larger import made_larger
from tracer.answers.why.source import class_around, source_at
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.frames import is_python
from tracer.blocks.from_snapshot.sizes import NOTHING
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.snapshot.replay import BEFORE
from tracer.units import format_bytes

_SCORES: Final = re.compile(r"softmax|attn|attention|scores", re.IGNORECASE)
_ATTENTION: Final = re.compile(r"attn|attention|\batt\b", re.IGNORECASE)
_PERCENT: Final = 20
_BATCHED: Final = ("aten::bmm", "aten::baddbmm", "aten::matmul", "aten::einsum")
_SOFTMAX: Final = ("aten::softmax", "aten::_softmax")


def attention_matrix(case: Case) -> Iterator[Cause]:
    """Scores of attention as a matrix: products of all pairs of rows that a softmax follows."""
    sizes = _sizes_of_scores(case)
    rows = _of_sizes(case, sizes) if sizes else _scores_by_names(case)
    held, size = case.held(rows), int(case.lives.requested_bytes[case.held(rows)].max(initial=0))
    made = case.followed.making(None) if case.followed is not None else None
    is_seen = made is not None and made.result.num_elements in sizes
    asks = is_seen or (case.asked_bytes in (size // 2, size, 2 * size) and _is_scores(case, case.asked_stack))
    asked, size = case.asked_bytes * asks, max(size, case.asked_bytes * asks)
    if not case.is_much(held, asked_bytes=asked, percent=_PERCENT):
        return
    holder = case.holder_of(held)
    if holder is not None and holder.graph_of is None and not holder.path.isidentifier():
        return  # something keeps them, and they are no scores on their way
    grown = np.concatenate([held[:0], *made_larger(case)])
    if len(held) and case.is_share(np.intersect1d(held, grown), of=held, percent=50):
        return  # a cache, whose old blocks are there until the new ones are
    yield Cause(
        "attention matrix",
        f"Attention makes its scores as whole matrices: {case.with_asked(held, asked)}, of up to "
        f"{format_bytes(size)} each, which grow with the square of the length.",
        "call torch.nn.functional.scaled_dot_product_attention in place of matmul and softmax "
        '(attn_implementation="sdpa" in transformers)',
        lambda modelled: with_smaller_blocks(modelled, rows, size, with_last_failure=asks),
        case.largest_site(held) or case.sites.site(case.asked_stack),
        GivesUp.A_LITTLE,
        behind=lambda later, _: 1.0 - (later.result.num_elements in sizes),
    )


def _sizes_of_scores(case: Case) -> frozenset[int]:
    """Elements of products larger than their operands, of which a softmax makes as many, as a second run showed."""
    makings = case.followed.uses.makings if case.followed is not None else ()
    products = {making for making in makings if making.operator in _BATCHED and making.inputs}
    pairs = ((making.result.num_elements, max(each.num_elements for each in making.inputs)) for making in products)
    softmaxes = {making.result.num_elements for making in makings if making.operator in _SOFTMAX}
    return frozenset(size for size, given in pairs if size >= 2 * given and size in softmaxes)


def _of_sizes(case: Case, sizes: frozenset[int]) -> Ints:
    """Blocks of so many elements that models make, by a second run, and those that the same lines make in that size."""
    assert case.followed is not None
    makings = [*(making.result.num_elements in sizes for making in case.followed.uses.makings), False]
    seen = case.followed.rows[np.array(makings)[np.array(case.followed.uses.making)[case.followed.places]]]
    seen = seen[~case.stays[seen]]
    key = case.stack * case.lives.requested_bytes.max(initial=1) + case.lives.requested_bytes
    return np.flatnonzero(np.isin(key, key[seen]) & (case.lives.begin > BEFORE))


def _scores_by_names(case: Case) -> Ints:
    """Blocks of one size, larger than any layer's result, of lines that speak of attention and of its scores."""
    lives = case.lives
    made = np.flatnonzero((lives.begin > BEFORE) & (lives.begin <= case.last_entry))
    is_layers = has(case.facts, Fact.LAYER, Fact.WORKSPACE)
    stack = np.where(case.forward >= 0, case.forward, lives.stack)
    passing = made[~is_layers[made] & ~case.stays[made] & has(case.sites.facts[stack[made]], Fact.MODULE_FORWARD)]
    held = case.held(passing)
    layers = case.held(made[is_layers[made]])
    size = max(case.asked_bytes, int(lives.requested_bytes[held].max(initial=0)))
    if not len(held) or size < 2 * int(lives.requested_bytes[layers].max(initial=0)):
        return NOTHING
    is_matrix = np.isin(lives.requested_bytes, [size // 2, size])
    named = {number: _is_scores(case, number) for number in np.unique(stack[passing[is_matrix[passing]]]).tolist()}
    rows = passing[is_matrix[passing] & np.array([named.get(number, False) for number in stack[passing].tolist()])]
    stacks = [*np.unique(stack[rows]).tolist(), case.asked_stack]
    is_attention = any(_ATTENTION.search(_words_of(case, number)) for number in stacks)
    return rows if is_attention else NOTHING  # scores of other things, or classes


def _is_scores(case: Case, stack: int) -> bool:
    return bool(_SCORES.search(_words_of(case, stack)))


def _words_of(case: Case, stack: int) -> str:
    """Names of the innermost functions of a stack, of their files and classes, and the line's text."""
    frames = [frame for frame in case.stacks[stack] if is_python(frame)][:4]
    names = (f"{frame.name} {PurePath(frame.file).name} {class_around(frame.file, frame.line)}" for frame in frames)
    return f"{' '.join(names)} {source_at(case.sites.site(stack))}"
