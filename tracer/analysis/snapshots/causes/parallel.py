"""Copies of weights and gradients that DistributedDataParallel and FSDP keep and need not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.causes.case import Case
from tracer.analysis.snapshots.causes.cause import Cause
from tracer.analysis.snapshots.changed_requests import with_smaller_blocks, without_blocks
from tracer.analysis.snapshots.frames import is_python, torch_file
from tracer.snapshot.columns import Frame
from tracer.units import some

_DDP: Final = "nn/parallel/distributed.py"
_FSDP: Final = ("distributed/fsdp/", "distributed/_composable/fsdp/")
_LEAST_PERCENT: Final = 20
_MOST_GATHERS: Final = 2
"""Of that size in a call of the model: of one that is wrapped block by block there are as many as blocks."""
_PARTS: Final = 4


def gathered_whole(case: Case) -> Iterator[Cause]:
    """Weights that FSDP gathers for the whole model at once, where it shards no block on its own."""
    of_fsdp = case.stacks_with([*map(_is_fsdps, case.frames)])
    rows = np.flatnonzero((case.kind == Kind.COMMUNICATION) & of_fsdp[case.lives.stack])
    held = case.held(rows)
    if not case.is_much(held, percent=_LEAST_PERCENT):
        return
    size = case.lives.requested_bytes
    large = rows[size[rows] * 2 >= size[held].max()]
    calls = case.calls[0][large]
    if not (calls >= 0).any() or np.bincount(calls[calls >= 0]).max() > _MOST_GATHERS:
        return
    yield Cause(
        "gathered whole",
        f"FSDP gathers the weights of the whole model at once: {case.words(held)}{case.lines(held)}.",
        "shard each repeated block on its own, so that one is gathered at a time (auto_wrap_policy="
        "ModuleWrapPolicy({Block}) of FSDP, or fully_shard(block) for each before fully_shard(model)): this is with "
        f"{_PARTS} parts",
        lambda modelled: with_smaller_blocks(modelled, rows, _PARTS, with_last_failure=bool(of_fsdp[case.asked_stack])),
        case.largest_site(held),
    )


def _is_fsdps(frame: Frame) -> bool:
    return is_python(frame) and (torch_file(frame) or "").startswith(_FSDP)


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
