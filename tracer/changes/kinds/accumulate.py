"""Gradient accumulation: the batch goes through the model in parts, one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from tracer.changes.change import BATCH_NORMS, Change, Situation, Stage, Wrapped, inmost
from tracer.changes.recommendation import Group, Keeps
from tracer.nested import leaves
from tracer.workloads.module_steps import StepWorkload

FAMILY = "accumulate"
_PARTS = (2, 4)


@dataclass(slots=True, eq=False)
class Accumulated(Wrapped):
    """Each batch in parts of equal size."""

    num_parts: int = 2  # Number of parts
    divides: bool = True  # Whether each part's loss is divided by their number, as a mean over the batch has it
    _left: deque[Any] = field(default_factory=deque)

    @property
    def num_micro_batches(self) -> int:
        """Forward and backward passes before each step of the optimizer."""
        return self.num_parts * Wrapped.num_micro_batches.fget(self)  # type: ignore[attr-defined, no-any-return]

    def next_batch(self) -> Any:
        """The next part of a batch, which stays alive as long as one of its parts is to come."""
        if not self._left:
            whole = self.inner.next_batch()
            size = batch_size(whole)
            self._left.extend(part_of(whole, size, self.num_parts, number) for number in range(self.num_parts))
        return self._left.popleft()

    def forward(self, batch: Any) -> Any:
        """The part's share of the loss."""
        loss = self.inner.forward(batch)
        return loss / self.num_parts if loss is not None and self.divides else loss


def batch_size(batch: Any) -> int:
    """Size of the first axis of the first tensor of a batch; 1 where there is none."""
    return next((tensor.shape[0] for _, tensor in leaves(batch, Tensor) if tensor.ndim), 1)


def part_of(batch: Any, size: int, num_parts: int, number: int) -> Any:
    """A batch with one part of every tensor whose first axis has the batch's size."""
    if isinstance(batch, Tensor):
        return batch.chunk(num_parts)[number] if batch.ndim and batch.shape[0] == size else batch
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(part_of(tensor, size, num_parts, number) for tensor in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(part_of(tensor, size, num_parts, number) for tensor in batch)
    if isinstance(batch, dict):
        return {key: part_of(tensor, size, num_parts, number) for key, tensor in batch.items()}
    return batch


def candidates(situation: Situation) -> Iterator[Change]:
    """Gradient accumulation over 2 and 4 parts, where the batch can be divided by that."""
    workload = inmost(situation.workload)
    if isinstance(workload, StepWorkload) or workload.optimizer is None or getattr(workload, "inference", False):
        return
    mixes = any(isinstance(module, BATCH_NORMS) for module in situation.model.modules())
    for num_parts in _PARTS:
        if situation.batch_size % num_parts == 0:
            yield Change(
                name=f"accumulate over {num_parts} parts of the batch",
                family=FAMILY,
                group=Group.TRAINING,
                keeps=Keeps.CONVERGENCE if mixes else Keeps.ROUNDING,
                lines=(
                    f"for part in zip(*(tensor.chunk({num_parts}) for tensor in batch)):",
                    f"    loss = loss_fn(model(part[0]), part[1]) / {num_parts}  # undivided where it is a sum",
                    "    loss.backward()",
                    "optimizer.step()",
                ),
                apply=partial(Accumulated, num_parts=num_parts),
                stage=Stage.BATCH,
                needs="Batch norms see a part of the batch at a time." if mixes else "",
                cost=f"{num_parts} times as many kernels, each on a {num_parts}th of the data.",
            )
