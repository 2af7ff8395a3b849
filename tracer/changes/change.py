"""A change of a training step: what it does to results, what it needs, the lines to paste, the workload around one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Self

import torch
from torch import nn

from tracer.changes.recommendation import Group, Keeps
from tracer.rehearsal.rehearse import Rehearsal
from tracer.workloads.workload import Workload, num_micro_batches


@dataclass(slots=True, eq=False)
class Wrapped:
    """The same step; what a change is about is overridden."""

    inner: Workload  # The workload

    @property
    def model(self) -> nn.Module:
        """The module whose parameters and buffers are named."""
        return self.inner.model

    @property
    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer of the model, if there is one."""
        return self.inner.optimizer

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.inner.device

    @property
    def num_micro_batches(self) -> int:
        """Forward and backward passes before each step of the optimizer."""
        return num_micro_batches(self.inner)

    def next_batch(self) -> Any:
        """A new batch on the device."""
        return self.inner.next_batch()

    def forward(self, batch: Any) -> Any:
        """The loss, a tensor; None if there is none."""
        return self.inner.forward(batch)

    def backward(self, loss: Any) -> None:
        """Fill the gradients; nothing without a loss."""
        self.inner.backward(loss)

    def optimizer_step(self) -> None:
        """Update the parameters and let go of the gradients."""
        self.inner.optimizer_step()

    def copy(self) -> Self | None:
        """The same on copies of model and optimizer; None if that cannot be."""
        inner = self.inner.copy()
        return None if inner is None else replace(self, inner=inner)


@dataclass(slots=True, eq=False)
class ForwardUnder(Wrapped):
    """The same with the forward pass under a context."""

    context: Callable[[], AbstractContextManager[object]]

    def forward(self, batch: Any) -> Any:
        """The loss, a tensor."""
        with self.context():
            return self.inner.forward(batch)


def inmost(workload: Workload) -> Workload:
    """The workload inside all that is around it."""
    while isinstance(workload, Wrapped):
        workload = workload.inner
    return workload


def with_inmost(workload: Workload, **fields: Any) -> Workload:
    """The same, with some fields of the workload inside replaced."""
    if isinstance(workload, Wrapped):
        return replace(workload, inner=with_inmost(workload.inner, **fields))
    return replace(workload, **fields)  # type: ignore[type-var]


BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Stage(IntEnum):
    """Subjects of changes, in the order in which changes are made together."""

    MODULES = 0
    """Computations of modules and of the loss."""
    FORWARD = 1
    """Around the forward of modules as they are by then."""
    OPTIMIZER = 2
    """Which optimizer."""
    STEP = 3
    """How its step works, and what is around that of the program."""
    BATCH = 4


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Something to change in a program."""

    name: str  # Name in a few words, such as `checkpoint blocks.0 to blocks.2`
    family: str  # Only one change is made of each family
    group: Group  # What it gives up
    keeps: Keeps  # What it leaves as it was
    lines: tuple[str, ...]  # To paste; `model`, `optimizer`, `loss_fn` and `batch` are the program's own
    # From a freshly built workload the changed one, which may be the same object; None: `lines`, run as they stand.
    apply: Callable[[Workload], Workload] | None = None
    stage: Stage = Stage.MODULES
    excludes: tuple[str, ...] = ()  # Families that make no sense together with it
    settings: str = ""  # Settings of the allocator, where the change is these and nothing else
    needs: str = ""  # What has to hold that a rehearsal cannot see, a sentence; or nothing
    cost: str = ""  # What it costs besides the operations that are counted; or nothing

    def made_to(self, workload: Workload) -> Workload:
        """Return a freshly built workload with the change made, if it is one of programs."""
        if self.settings:
            return workload
        if self.apply is not None:
            return self.apply(workload)
        optimizer = after(self.lines, model=workload.model, optimizer=workload.optimizer)["optimizer"]
        return workload if optimizer is workload.optimizer else with_inmost(workload, optimizer=optimizer)


def after(lines: Sequence[str], **names: Any) -> dict[str, Any]:
    """Run lines in a program that has these names; return its names by then."""
    names["torch"] = torch
    exec("\n".join(lines), names)
    return names


@dataclass(frozen=True, slots=True)
class Part:
    """A module that can compute its activations again."""

    name: str  # Dotted, as in `model.get_submodule`
    saved_bytes: int  # Activations that it made and that are alive at the peak
    flops: int  # FLOPs of one forward pass of it
    order: int  # Its place among the parts in the order of their first calls


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """A program as it is, which changes are made for."""

    workload: Workload  # Rehearsed: its tensors hold no numbers any more
    rehearsal: Rehearsal  # What the rehearsal of it showed
    device: str  # "cpu" or "cuda": whose rules were followed
    flops: int  # FLOPs of one step
    parts: Sequence[Part]  # Modules that could compute again, in the order of their calls
    bytes_by_operator: Mapping[str, int] = field(default_factory=dict)  # Bytes of the rows at the peak, by operator
    bytes_by_place: Mapping[tuple[str, str], int] = field(default_factory=dict)  # The same, by operator and module
    batch_size: int = 1  # Size of the first axis of the batch's first tensor; 1 where there is none
    # The model was called in evaluation mode with gradients on, and no backward went back.
    evaluates_with_gradients: bool = False

    @property
    def model(self) -> nn.Module:
        """The module that is trained."""
        return self.workload.model

    @property
    def peak_bytes(self) -> int:
        """The most that is allocated."""
        return peak_bytes(self.rehearsal)


def peak_bytes(rehearsal: Rehearsal) -> int:
    """The most that is allocated: on the CPU as asked for, on a device as its allocator rounds it."""
    memory = rehearsal.memory
    return memory.peak_requested_bytes if rehearsal.device == "cpu" else memory.peak_allocated_bytes


def optimizer_options(optimizer: Any) -> Mapping[str, Any]:
    """Options of the optimizer's first parameter group; empty where it has none."""
    groups = getattr(optimizer, "param_groups", [])
    return groups[0] if groups else {}
