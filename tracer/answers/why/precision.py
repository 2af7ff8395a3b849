"""Blocks with more bits or more numbers than their values need: float64, one-hot labels, copies by autocast."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_earlier_frees, with_smaller_blocks
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.source import source_at
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.frames import is_label, is_python, torch_file
from tracer.blocks.kinds import Kind
from tracer.snapshot.columns import Frame
from tracer.units import format_bytes

_LEAST_PERCENT: Final = 20
_AS_LABELS: Final = 1 << 10
"""By how much less the labels take, so little that it does not matter here."""
_ONE_HOT: Final = re.compile(r"\bone_hot\s*\(")


def float64(case: Case) -> Iterator[Cause]:
    """Tensors of float64, as NumPy makes them, where the program's objects tell of types."""
    if case.objects is None:
        return
    held, rows = case.alike(case.objects.float64)
    if not case.is_much(held, percent=_LEAST_PERCENT):
        return
    asks = case.asked_stack in case.stack[rows]  # The same lines ask again
    yield Cause(
        "float64",
        f"Tensors of float64 fill {case.words(held)}{case.lines(held)}: NumPy makes float64 unless it is told "
        "otherwise, and float32 takes half.",
        "use float32 (`tensor.float()` where the data is made, `model.float()`)",
        lambda modelled: with_smaller_blocks(modelled, rows, 2, with_last_failure=asks),
        case.largest_site(held),
        GivesUp.A_LITTLE,
    )


def one_hot(case: Case) -> Iterator[Cause]:
    """Labels with a number for each class, where the source of the line that makes them is here."""
    stacks = np.unique([*case.stack[case.in_use].tolist(), case.asked_stack])
    makes = [stack for stack in stacks.tolist() if _ONE_HOT.search(source_at(case.sites.site(stack)))]
    rows = np.flatnonzero(np.isin(case.stack, makes))
    held, asked = case.held(rows), case.asked_bytes * (case.asked_stack in makes)
    if (case.bytes(held) + asked) * 100 < _LEAST_PERCENT * case.in_use_bytes:
        return
    wanted = f", and {format_bytes(asked)} more were asked for" if asked else ""
    yield Cause(
        "one-hot labels",
        f"One-hot labels have a number for each class (int64 from one_hot): {case.words(held)}{case.lines(held)}"
        f"{wanted}.",
        "give the loss the labels themselves (torch.nn.functional.cross_entropy takes the classes' numbers), or go "
        "over the classes one by one",
        lambda modelled: with_smaller_blocks(modelled, rows, _AS_LABELS, with_last_failure=asked > 0),
        case.sites.site(makes[0]),
        GivesUp.A_LITTLE,
    )


_CAST: Final = "at::autocast::cached_cast("
_CASTS_PERCENT: Final = 10
_GRAPH_PERCENT: Final = 40
"""Of what else a call made, that is in use: without a graph most is freed on the way."""


def autocast_copies(case: Case) -> Iterator[Cause]:
    """Parameters that autocast has cast and keeps until it is left, in a call that keeps nothing for a backward.

    Where a backward follows, the graph needs them.
    """
    lives, rows = case.lives, cast_weights(case)
    held = case.held(rows)
    if not case.is_much(held, percent=_CASTS_PERCENT):
        return
    call = case.calls[0]
    of_call = np.flatnonzero((call == call[held].max()) & ~case.stays & (lives.begin <= case.entry))
    others = np.setdiff1d(of_call, rows)
    if call[held].max() < 0 or case.is_share(case.held(others), of=others, percent=_GRAPH_PERCENT):
        return
    unused = np.append(lives.begin[rows[2:]], [case.entry] * 2)[: len(rows)]
    yield Cause(
        "copies of autocast",
        f"torch.autocast keeps what it has cast of the weights until it is left: {case.words(held)}{case.lines(held)}, "
        "beside the weights themselves.",
        "enter autocast with cache_enabled=False where nothing is trained, or convert the model once (model.half(), "
        "model.bfloat16())",
        lambda modelled: with_earlier_frees(modelled, rows, unused),
        case.largest_site(held),
    )


def cast_weights(case: Case) -> Ints:
    """Blocks of autocast's, half as large as a parameter, that were made up to the moment, in order.

    Without C++ frames, those that a layer's own line in torch made in a model's call, and that no graph keeps.
    """
    lives = case.lives
    weights = lives.requested_bytes[case.in_use[case.kind[case.in_use] == Kind.PARAMETER]]
    is_cast = case.with_frame(lambda frame: frame.name.startswith(_CAST))[lives.stack]
    if case.has_no_graph and not is_cast.any():
        is_cast = case.in_model
    rows = np.flatnonzero(is_cast & (lives.begin <= case.entry))
    rows = rows[np.isin(lives.requested_bytes[rows] * 2, weights)]
    if case.has_no_graph:
        made = [stack for stack in np.unique(case.stack[rows]).tolist() if _is_made_by_layer(case.stacks[stack])]
        rows = rows[np.isin(case.stack[rows], made)]
    return rows[np.argsort(lives.begin[rows])]


def _is_made_by_layer(stack: list[Frame]) -> bool:
    """Whether the innermost line of Python is one of torch's layers."""
    innermost = next((frame for frame in stack if is_python(frame) and not is_label(frame)), None)
    return innermost is not None and (torch_file(innermost) or "").startswith("nn/modules/")
