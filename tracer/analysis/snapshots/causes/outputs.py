"""The logits of a model with a large vocabulary, and what a loss makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.analysis.snapshots.causes.case import Case
from tracer.analysis.snapshots.causes.cause import Cause, GivesUp
from tracer.analysis.snapshots.changed_requests import with_smaller_blocks
from tracer.analysis.snapshots.frames import is_python
from tracer.analysis.snapshots.stack_facts import Fact, has
from tracer.arrays import Bools, Ints, at
from tracer.snapshot.columns import Frame
from tracer.snapshot.replay import BEFORE
from tracer.units import format_bytes

_PARTS: Final = 4
_TIMES: Final = 2
"""By how much logits are larger than any other layer's result, at least."""
_SIZES: Final = (0.5, 1.0, 2.0)
"""Of the logits: a copy in fewer or more bits, a log-softmax, a gradient."""
_LEAST_PERCENT: Final = 25


def logits(case: Case) -> Iterator[Cause]:
    """Copies of the largest layer's result, which is the last one's, and the cross entropy's blocks."""
    lives = case.lives
    made = np.flatnonzero((lives.begin > BEFORE) & (lives.begin <= case.last_entry))
    of_loss = made[_is_of_loss(case)[made]]
    size = _size_of_logits(case)
    alike = made[_is_alike(case, lives.requested_bytes[made], size) & ~case.stays[made]] if size else of_loss[:0]
    rows = np.union1d(of_loss, alike)
    held = case.held(rows)
    asks = bool(size) and bool(_is_alike(case, np.array([case.asked_bytes]), size).all())
    asks |= bool(case.stacks_with([*map(_is_cross_entropy, case.frames)])[case.asked_stack])
    filled = case.bytes(held) + asks * case.asked_bytes
    if not len(rows) or len(held) + asks < 2 or filled * 100 < _LEAST_PERCENT * case.in_use_bytes:
        if len(of_loss) and case.is_worth(without=of_loss):
            yield _cause(case, of_loss, f"The cross entropy makes {case.words(of_loss)} of the logits.")
        return
    which = f"{format_bytes(size)}" if size else "large"
    wanted = f", and {format_bytes(case.asked_bytes)} more were asked for" if asks else ""
    yield _cause(
        case,
        rows,
        f"The logits ({which}) and what is made of them fill {case.words(held)}{case.lines(held, 3)}{wanted}: copies "
        "in full precision, softmax or log-softmax over the vocabulary, their gradients.",
        asks=asks,
    )


def _cause(case: Case, rows: Ints, sentence: str, *, asks: bool = False) -> Cause:
    forward = rows[~has(case.facts[rows], Fact.ENGINE)]
    trains = case.last_learning > BEFORE or bool(has(case.facts, Fact.BACKWARD_CALL).any())
    change = (
        f"compute the loss, or the log-probabilities, in {_PARTS} parts of the tokens, each recomputed in backward "
        "(torch.utils.checkpoint), or by an operator that never makes the logits whole (a fused linear cross entropy)"
        if trains
        else f"take what is needed before the copy is made (logits[:, -1].float()), or go over {_PARTS} parts of the "
        "batch"
    )
    return Cause(
        "logits",
        sentence,
        change,
        lambda modelled: with_smaller_blocks(modelled, rows, _PARTS, with_last_failure=asks),
        case.largest_site(forward) if len(forward) else None,
        GivesUp.A_LITTLE,
    )


def _is_of_loss(case: Case) -> Bools:
    """Whether each block is of a cross entropy, in forward or in backward [lives]."""
    is_loss = case.stacks_with([*map(_is_cross_entropy, case.frames)])
    is_of_loss: Bools = is_loss[case.lives.stack] | at(is_loss, case.forward, False)
    return is_of_loss


def _is_cross_entropy(frame: Frame) -> bool:
    return is_python(frame) and ("cross_entropy" in frame.name or frame.name == "ForCausalLMLoss")


def _size_of_logits(case: Case) -> int:
    """Bytes of the last layer's result, where it is much larger than all others' of that call; else 0."""
    in_layer = np.flatnonzero(has(case.facts, Fact.LAYER) & ~has(case.facts, Fact.ENGINE) & ~case.stays)
    call, _ = case.calls
    in_layer = in_layer[(call[in_layer] >= 0) & (case.lives.begin[in_layer] <= case.entry)]
    if not len(in_layer):
        return 0
    mine = in_layer[call[in_layer] == call[in_layer].max()]
    mine = mine[np.argsort(case.lives.begin[mine])]
    *others, last = case.lives.requested_bytes[mine].tolist()
    return last if others and last >= _TIMES * max(others) else 0


def _is_alike(case: Case, size: Ints, of: int) -> Bools:
    """Which sizes are those of copies of the logits."""
    is_alike: Bools = np.logical_or.reduce([np.abs(size - times * of) <= 0.01 * of for times in _SIZES])
    return is_alike
