"""Blocks that an optimizer makes at its step; gradients that stay too long, of whole embeddings, of each sample."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_earlier_frees, with_smaller_blocks, without_blocks
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.frames import is_label, is_python, torch_file
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Kind
from tracer.snapshot.columns import Frame
from tracer.units import format_bytes, some

_FUSED: Final = ("adam.py", "adamw.py", "sgd.py", "adagrad.py")
"""Optimizers of torch.optim that have `fused=True`."""
_LEAST_BYTES: Final = 1024
"""Bytes of a block of state: an optimizer also counts its steps."""
_FEWER_BITS: Final = 4


def state_to_come(case: Case) -> Iterator[Cause]:
    """The optimizer's state, where memory runs out in the first step, as the state is made parameter by parameter."""
    makes = case.with_frame(
        lambda frame: (
            is_python(frame) and frame.name == "_init_group" and (torch_file(frame) or "").startswith("optim/")
        )
    )
    if not case.has_failed or not makes[case.asked_stack]:
        return
    _, ends = case.device.kinds.phases.steps
    # Blocks from before the end of the last step belong to other optimizers, which made those steps.
    is_new = case.lives.alloc_entry > max(ends[ends <= case.entry], default=-1)
    gradients = case.bytes(case.in_use[(case.kind[case.in_use] == Kind.GRADIENT) & is_new[case.in_use]])
    rows = np.flatnonzero((case.kind == Kind.OPTIMIZER_STATE) & (case.lives.requested_bytes >= _LEAST_BYTES) & is_new)
    held = case.held(rows)
    lines = {_innermost(case, stack) for stack in np.unique(case.lives.stack[held]).tolist()}
    lines.add(_innermost(case, case.asked_stack))
    whole = len(lines) * gradients
    to_come = whole - case.bytes(held)
    if to_come <= 0 or not case.is_much(held):
        return
    yield Cause(
        "optimizer state",
        f"Memory ran out in the optimizer's first step, which makes its state, {some(len(lines), 'block')} for each "
        f"parameter: {format_bytes(case.bytes(held))} of {format_bytes(whole)} are there, and no batch is small enough "
        f"to be without the {format_bytes(to_come)} to come.",
        "keep the state in fewer bits (8-bit AdamW of bitsandbytes or torchao), on the host, or in parts on several "
        "GPUs (FSDP, ZeRO): this is with a quarter of it",
        lambda modelled: with_smaller_blocks(modelled, rows, _FEWER_BITS, with_last_failure=True),
        gives_up=GivesUp.TIME_OR_SIZE,
        grows="more of the state is to come",
    )


def _innermost(case: Case, stack: int) -> tuple[str, int]:
    return next((frame.file, frame.line) for frame in case.stacks[stack] if is_python(frame) and not is_label(frame))


def optimizer_temporaries(case: Case) -> Iterator[Cause]:
    """Temporaries that the optimizer's foreach implementation makes for all parameters at once."""
    is_foreach = case.with_frame(_is_foreach)
    rows = np.flatnonzero(is_foreach[case.lives.stack] & (case.kind != Kind.OPTIMIZER_STATE))
    if not len(rows) or not case.is_worth(without=rows):
        return
    held = case.held(rows)
    state = case.in_use[case.kind[case.in_use] == Kind.OPTIMIZER_STATE]
    runs = case.device.kinds.phases.steps
    is_first = bool(len(runs[0])) and not (runs[1] <= case.entry).any()
    first = (
        f"Memory ran out in the optimizer's first step, which makes its state ({format_bytes(case.bytes(state))} that "
        "stay; no batch is small enough to be without). "
        if case.has_failed and is_first and len(state)
        else ""
    )
    now = f"; {case.words(held)} of them were in use" if len(held) else ""
    is_fused = case.with_frame(_has_fused)[case.lives.stack[rows]].all()
    change = (
        "give the optimizer fused=True, which makes none of them (or foreach=False, one parameter at a time)"
        if is_fused
        else "give the optimizer foreach=False: it then updates one parameter at a time"
    )
    yield Cause(
        "optimizer temporaries",
        f"{first}The optimizer's foreach implementation makes {some(len(rows), 'block')} for all parameters at once"
        f"{now}.",
        change,
        lambda modelled: without_blocks(modelled, rows),
        gives_up=GivesUp.A_LITTLE,
    )


def _is_foreach(frame: Frame) -> bool:
    is_of_torch = (torch_file(frame) or "").startswith("optim/")
    return is_python(frame) and frame.name.startswith("_multi_tensor_") and is_of_torch


def _has_fused(frame: Frame) -> bool:
    return _is_foreach(frame) and (torch_file(frame) or "").removeprefix("optim/") in _FUSED


def gradients_freed_late(case: Case) -> Iterator[Cause]:
    """Gradients that the optimizer has used, and that are freed only later, or are there as a forward fails."""
    lives, (start, end) = case.device.replay.lives, case.device.kinds.phases.steps
    if not len(start):
        return
    last = np.searchsorted(start, lives.end, side="left") - 1
    is_used = (last >= 0) & (start[last] > lives.begin) & (lives.end > end[last])
    asked = case.sites.facts[case.asked_stack]
    fails_in_forward = case.has_failed and not has(asked, Fact.ENGINE, Fact.OPTIMIZER_STEP)
    is_over = lives.end < len(case.device.state.trace)
    rows = np.flatnonzero((case.kind == Kind.GRADIENT) & is_used & (is_over | fails_in_forward))
    if case.followed is not None and len(case.followed.read_again(rows)):
        return  # the next backward adds to them, or the program looks at them
    if len(rows) and case.is_worth(end=(rows, end[last[rows]])):
        held = case.held(rows) if fails_in_forward else rows[:0]
        now = f": {case.words(held)} are there as this forward asks for more" if len(held) else ""
        yield Cause(
            "gradients freed late",
            f"{some(len(rows), 'block')} of gradients are freed only in the next iteration{now}.",
            "call zero_grad(set_to_none=True) right after the optimizer's step",
            lambda modelled: with_earlier_frees(modelled, rows, end[last[rows]]),
        )


_LEAST_PERCENT: Final = 20
_EMBEDDINGS: Final = ("Embedding", "EmbeddingBag")
_LOOKED_UP: Final = 1 << 10
"""By how much less the rows take that a batch has looked up, so little that it does not matter here."""


def gradient_of_embedding(case: Case) -> Iterator[Cause]:
    """Gradients of whole embeddings, of which a batch looks up a few rows; state is as large with sparse ones."""
    frames = case.sites.autograd
    is_one = np.array([name in _EMBEDDINGS for name in frames.names] + [False], np.bool_)[frames.node]
    rows = np.flatnonzero(is_one[case.lives.stack] & ~case.stays)
    asked = case.asked_bytes * bool(is_one[case.asked_stack])
    if case.objects is not None:
        rows = np.union1d(rows, case.at_addresses(case.objects.dense_embeddings))
    rows = rows[case.kind[rows] != Kind.OPTIMIZER_STATE]
    held = case.held(rows)
    if not case.is_much(held, asked_bytes=asked, percent=_LEAST_PERCENT):
        return
    yield Cause(
        "gradient of an embedding",
        f"An embedding gets a gradient of its whole table, though a batch looks up a few rows: "
        f"{case.with_asked(held, asked)}.",
        "make it with sparse=True, and update it with SGD, which keeps no state of the table, or with SparseAdam or "
        "Adagrad, whose state is as large as the table; it may as well be on the host",
        lambda modelled: with_smaller_blocks(modelled, rows, _LOOKED_UP, with_last_failure=asked > 0),
        case.largest_site(held),
        GivesUp.A_LITTLE,
        names_bytes=case.bytes(held) + asked,
    )


_PER_SAMPLE: Final = re.compile(r"/opacus/grad_sample/|/_functorch/vmap\.py$|/_functorch/apis\.py$|/backpack/")
_SAMPLES_PARTS: Final = 4
_LEAST_SIZES: Final = 2
_LEAST_OF_WEIGHTS: Final = 0.25
"""Share of the bytes of these weights: so many have a gradient for each sample."""
_MOST_WEIGHTS: Final = 8
"""The largest sizes of weights, by which the number of samples is looked for."""


def gradients_of_samples(case: Case) -> Iterator[Cause]:
    """Gradients with a row for each sample: as large as a parameter, times the same number for all.

    Only where Opacus, BackPACK or `torch.func.vmap` is in the recording: other blocks may have such sizes, too.
    """
    is_named = case.with_frame(lambda frame: bool(_PER_SAMPLE.search(frame.file)))
    if not is_named.any():
        return
    is_named |= has(case.sites.facts, Fact.ENGINE)
    made, size = np.flatnonzero(is_named[case.lives.stack] & ~case.stays), case.lives.requested_bytes
    asked = case.asked_bytes * bool(is_named[case.asked_stack])
    weights = np.unique(size[case.in_use[case.kind[case.in_use] == Kind.PARAMETER]])
    number = _num_samples(np.append(size[case.held(made)], asked), weights)
    rows, asked = made[np.isin(size[made], weights * number)], asked * bool(asked in weights * number)
    held = case.held(rows)
    if not case.is_much(held, asked_bytes=asked, percent=_LEAST_PERCENT):
        return
    yield Cause(
        "gradients of samples",
        f"Each parameter has a gradient for each of {number:,} samples: {case.with_asked(held, asked)}.",
        f"go over the batch in {_SAMPLES_PARTS} parts, and clip and sum up the gradients of each before the next "
        "(BatchMemoryManager in Opacus, chunk_size of vmap), or clip without them (ghost clipping)",
        lambda modelled: with_smaller_blocks(modelled, rows, _SAMPLES_PARTS, with_last_failure=asked > 0),
        case.largest_site(held),
        GivesUp.A_LITTLE,
    )


def _num_samples(sizes: Ints, weights: Ints) -> int:
    """Return the one number by which most bytes are larger than the weights, of two sizes at least; 0 if none."""
    size, count = np.unique(sizes, return_counts=True)
    weight = weights[-_MOST_WEIGHTS:, np.newaxis]
    of_weight, of_size = np.nonzero((size > weight) & (size % weight == 0))
    if not len(of_size):
        return 0
    times, number = np.unique(size[of_size] // weight[of_weight, 0], return_inverse=True)
    filled = np.bincount(number, (size * count)[of_size]) * (np.bincount(number) >= _LEAST_SIZES)
    # The bytes of a bias divide many a size: it says nothing alone.
    filled *= np.bincount(number, weight[of_weight, 0]) >= _LEAST_OF_WEIGHTS * weight.sum()
    return int(times[filled.argmax()]) if filled.any() else 0
