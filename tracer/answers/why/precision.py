"""Blocks with more bits than their values need: float64, copies by autocast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_earlier_frees, with_smaller_blocks
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.source import cast_behind
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.frames import is_label, is_python, torch_file
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Kind
from tracer.snapshot.columns import Frame

_LEAST_PERCENT: Final = 20


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


def moved_before_cast(case: Case) -> Iterator[Cause]:
    """Parameters that are moved as they are, and cast to fewer bits by a later line of the same function."""
    if not case.has_failed or not has(case.sites.facts, Fact.MODULE_SETUP)[case.asked_stack]:
        return
    site = case.sites.site(case.asked_stack)
    cast = cast_behind(site)
    rows = case.in_use[case.is_set_up[case.in_use]]
    moved = [stack for stack in np.unique(case.stack[rows]).tolist() if case.sites.site(stack) == site]
    rows = rows[np.isin(case.stack[rows], moved)]
    if not cast or not case.is_much(rows, percent=_LEAST_PERCENT):
        return
    yield Cause(
        "moved before cast",
        f"The model is moved as it is, {case.words(rows)}{case.lines(rows)}, and cast to fewer bits only behind that "
        f"(line {cast}).",
        "cast it first, then move it (model.to(torch.bfloat16) before model.to(device), or both in one call)",
        lambda modelled: with_smaller_blocks(modelled, rows, 2, with_last_failure=True),
        site,
        names_bytes=case.bytes(rows),
    )


_CAST: Final = "at::autocast::cached_cast("
_CASTS_PERCENT: Final = 10
_GRAPH_PERCENT: Final = 40
"""Percent in use of what else a call made: without a graph most is freed on the way."""


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
    """True if the innermost line of Python is in one of torch's layers."""
    innermost = next((frame for frame in stack if is_python(frame) and not is_label(frame)), None)
    return innermost is not None and (torch_file(innermost) or "").startswith("nn/modules/")
