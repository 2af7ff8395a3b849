"""Blocks that an optimizer makes at its step, and gradients that stay longer than they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.causes.case import Case
from tracer.analysis.snapshots.causes.cause import Cause, GivesUp
from tracer.analysis.snapshots.changed_requests import with_earlier_frees, without_blocks
from tracer.analysis.snapshots.frames import is_python, torch_file
from tracer.snapshot.columns import Frame
from tracer.units import format_bytes, some

_FUSED: Final = ("adam.py", "adamw.py", "sgd.py", "adagrad.py")
"""Optimizers of torch.optim that have `fused=True`."""
_DDP: Final = "nn/parallel/distributed.py"


def optimizer_temporaries(case: Case) -> Iterator[Cause]:
    """Temporaries that the optimizer's foreach implementation makes for all parameters at once."""
    is_foreach = case.stacks_with([*map(_is_foreach, case.frames)])
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
    yield Cause(
        "optimizer temporaries",
        f"{first}The optimizer's foreach implementation makes {some(len(rows), 'block')} for all parameters at once"
        f"{now}.",
        "give the optimizer fused=True, which makes none of them (or foreach=False, one parameter at a time)",
        lambda modelled: without_blocks(modelled, rows),
        gives_up=GivesUp.A_LITTLE,
    )


def _is_foreach(frame: Frame) -> bool:
    """Whether it is the foreach implementation of an optimizer that has a fused one."""
    return (
        is_python(frame)
        and frame.name.startswith("_multi_tensor_")
        and (torch_file(frame) or "").removeprefix("optim/") in _FUSED
    )


def gradients_freed_late(case: Case) -> Iterator[Cause]:
    """Gradients that the optimizer has used, and that are freed only later."""
    lives, (start, end) = case.device.replay.lives, case.device.kinds.phases.steps
    if not len(start):
        return
    last = np.searchsorted(start, lives.end, side="left") - 1
    is_used = (
        (last >= 0) & (start[last] > lives.begin) & (lives.end > end[last]) & (lives.end < len(case.device.state.trace))
    )
    rows = np.flatnonzero((case.kind == Kind.GRADIENT) & is_used)
    if len(rows) and case.is_worth(end=(rows, end[last[rows]])):
        yield Cause(
            "gradients freed late",
            f"{some(len(rows), 'block')} of gradients are freed only in the next iteration.",
            "call zero_grad(set_to_none=True) right after the optimizer's step",
            lambda modelled: with_earlier_frees(modelled, rows, end[last[rows]]),
        )


def gradients_beside_buckets(case: Case) -> Iterator[Cause]:
    """Gradients of which DistributedDataParallel has a second copy in its buckets.

    Source: `gradient_as_bucket_view` in torch/nn/parallel/distributed.py; gradients that are views have no blocks.
    """
    if not any(torch_file(frame) == _DDP for frame in case.frames):
        return
    at_peak = case.device.replay.lives.alive_after(case.device.replay.peak_entry)
    gradients, buckets = (case.bytes(at_peak[case.kind[at_peak] == of]) for of in (Kind.GRADIENT, Kind.COMMUNICATION))
    rows = np.flatnonzero(case.kind == Kind.GRADIENT)
    if 0 < gradients <= buckets and case.is_worth(without=rows):
        yield Cause(
            "gradients beside buckets",
            f"{some(len(rows), 'block')} of gradients are copies of what lies in DistributedDataParallel's buckets.",
            "give DistributedDataParallel gradient_as_bucket_view=True",
            lambda modelled: without_blocks(modelled, rows),
        )
