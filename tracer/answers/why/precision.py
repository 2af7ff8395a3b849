"""Blocks with more bits than their values need: float64, copies by autocast."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_earlier_frees, with_smaller_blocks
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.line_results import CAST, CASTS
from tracer.answers.why.source import calls_on, cast_behind
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


_WEIGHTS_PERCENT: Final = 50


def weights_in_32_bits(case: Case) -> Iterator[Cause]:
    """Parameters of float32 that are most of what is in use, where nothing of a training is there."""
    if case.objects is None or not case.has_no_graph:
        return
    rows = case.at_addresses(case.objects.float32)
    trains = np.isin(case.kind[case.in_use], (Kind.GRADIENT, Kind.OPTIMIZER_STATE)).any()
    if trains or not case.is_much(rows, percent=_WEIGHTS_PERCENT):
        return
    asks = case.asked_stack in case.stack[rows]
    yield Cause(
        "weights in 32 bits",
        f"{case.words(rows)}{case.lines(rows)} are parameters of float32.",
        "load them in 16 bits (dtype=torch.bfloat16) if that is enough for their use: this is with half",
        lambda modelled: with_smaller_blocks(modelled, rows, 2, with_last_failure=asks),
        case.largest_site(rows),
        GivesUp.A_LITTLE,
        grows="the rest of the model is to come" if asks else "",
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


_MORE_BITS_PERCENT: Final = 15
_WIDENED: Final = {("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64")}


def kept_in_more_bits(case: Case) -> Iterator[Cause]:
    """Copies in more bits that forward makes of its results, at lines without a cast, and keeps for a backward."""
    if (followed := case.followed) is None:
        return
    rows = followed.used_next(lambda use: use is not None and use.in_backward)
    made = {row: making for row in rows.tolist() if (making := followed.making(row)) is not None}
    cast = {
        row: making
        for row, making in made.items()
        if making.operator in CASTS
        if making.inputs and (making.inputs[0].dtype, making.result.dtype) in _WIDENED
        if calls_on(case.sites.site(int(case.lives.stack[row]))).isdisjoint(CAST)
    }
    # A result with the type and shape of such a copy is taken to be computed from one.
    kinds = {(making.result.shape, making.result.dtype) for making in cast.values()}
    rows = np.array(
        [row for row, making in made.items() if (making.result.shape, making.result.dtype) in kinds], np.int64
    )
    copies = np.array([*cast], np.int64)
    if not case.is_much(copies, percent=_MORE_BITS_PERCENT):
        return
    largest = max(cast.values(), key=lambda making: making.result.size_bytes)
    weights = case.lives.requested_bytes[case.in_use[case.kind[case.in_use] == Kind.PARAMETER]]
    casts = (making for making in followed.uses.makings if making.operator in CASTS and making.inputs)
    if any(each.inputs[0].dtype == largest.result.dtype and each.inputs[0].size_bytes in weights for each in casts):
        return  # the weights have these bits
    readers = Counter[str]()
    for row in copies.tolist():
        if (use := followed.next_use(row)) is not None:
            readers[use.operator.partition("::")[2].strip("_")] += int(case.lives.requested_bytes[row])
    by = f"; {' and '.join(name for name, _ in readers.most_common(2))} read them"
    yield Cause(
        "kept in more bits",
        f"{case.words(copies)}{case.lines(copies)} are copies of results in more bits ({largest.inputs[0].dtype} to "
        f"{largest.result.dtype}) that are kept for backward, of lines whose source shows no cast{by}.",
        'compute these under torch.autocast("cuda", enabled=False), if it is torch.autocast that makes the copies and '
        "the weights are in few bits already",
        lambda modelled: with_smaller_blocks(modelled, rows, 2),
        case.largest_site(copies),
        GivesUp.A_LITTLE,
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
