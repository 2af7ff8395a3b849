"""A loss in chunks, each computed again in backward: for logits that are larger than all else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tracer.changes.change import Change, Situation
from tracer.changes.recommendation import Group, Keeps
from tracer.changes.wrapped import inmost, with_inmost
from tracer.workloads.supervised import SupervisedWorkload
from tracer.workloads.workload import Workload

_OF_LOSSES = ("aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::nll_loss_backward")
_WORTHWHILE = 0.05
_CHUNKS = (4, 16)


def candidates(situation: Situation) -> Iterator[Change]:
    """The loss in 4 and in 16 chunks, where a softmax over classes is a good part of the peak."""
    workload = inmost(situation.workload)
    of_loss = sum(situation.bytes_by_operator.get(name, 0) for name in _OF_LOSSES)
    if not isinstance(workload, SupervisedWorkload) or of_loss < _WORTHWHILE * situation.peak_bytes:
        return
    size = situation.batch_size
    for chunks in sorted({min(number, size) for number in _CHUNKS}):
        if chunks < 2 or size % chunks:
            continue
        yield Change(
            name=f"the loss in {chunks} chunks, each computed again in backward",
            family="loss",
            group=Group.MEMORY,
            keeps=Keeps.ROUNDING,
            lines=(
                "from torch.utils.checkpoint import checkpoint",
                f"pairs = zip(logits.chunk({chunks}), targets.chunk({chunks}))",
                "loss = torch.stack([checkpoint(loss_fn, *pair, use_reentrant=False) for pair in pairs]).mean()",
            ),
            apply=_applied(chunks),
            needs="The loss is a mean over the batch.",
        )


def _applied(num_chunks: int) -> Callable[[Workload], Workload]:
    def apply(workload: Workload) -> Workload:
        return with_inmost(workload, loss=_chunked(inmost(workload).loss, num_chunks))  # type: ignore[attr-defined]

    return apply


def _chunked(loss: Callable[[Tensor, Tensor], Tensor], num_chunks: int) -> Callable[[Tensor, Tensor], Tensor]:
    def chunked(output: Tensor, target: Tensor) -> Tensor:
        pairs = zip(output.chunk(num_chunks), target.chunk(num_chunks), strict=True)
        losses: list[Any] = [checkpoint(loss, *pair, use_reentrant=False) for pair in pairs]
        return torch.stack(losses).mean()

    return chunked
