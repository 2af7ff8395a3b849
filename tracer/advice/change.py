"""A change of a training step: what it does to results, what it needs, the lines to paste, and how to apply it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tracer.advice.recommendation import Group, Keeps
from tracer.rehearsal.rehearse import Rehearsal
from tracer.workloads.workload import Workload

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Something to change in a program.

    Attributes:
        name: Name in a few words, such as `checkpoint blocks.0 to blocks.2`.
        family: Only one change is made of each family.
        excludes: Families that make no sense together with it.
        group: What it gives up.
        keeps: What it leaves as it was.
        lines: To paste; `model`, `optimizer`, `loss_fn` and `batch` are the program's own.
        apply: From a freshly built workload the changed one; it may be the same object.
        settings: Settings of the allocator, where the change is these and nothing else.
        needs: What has to hold that a rehearsal cannot see, a sentence; or nothing.
        cost: What it costs besides the operations that are counted; or nothing.
    """

    name: str
    family: str
    group: Group
    keeps: Keeps
    lines: tuple[str, ...]
    apply: Callable[[Workload], Workload] = lambda workload: workload
    excludes: tuple[str, ...] = ()
    settings: str = ""
    needs: str = ""
    cost: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A module that can compute its activations again.

    Attributes:
        name: Dotted, as in `model.get_submodule`.
        saved_bytes: Activations that it made and that are alive at the peak.
        flops: FLOPs of one forward pass of it.
        order: Its place among the parts in the order of their first calls.
    """

    name: str
    saved_bytes: int
    flops: int
    order: int


@dataclass(frozen=True, slots=True, eq=False)
class Situation:
    """A program as it is, which changes are made for.

    Attributes:
        workload: Rehearsed: its tensors hold no numbers any more.
        rehearsal: What the rehearsal of it showed.
        device: "cpu" or "cuda": whose rules were followed.
        flops: FLOPs of one step.
        parts: Modules that could compute again, in the order of their calls.
        bytes_by_operator: Bytes of the rows at the peak, by operator.
        bytes_by_place: The same, by operator and module.
        batch_size: Size of the first axis of the batch's first tensor; 1 where there is none.
        evaluates_with_gradients: The model was called in evaluation mode with gradients on, and no backward went back.
    """

    workload: Workload
    rehearsal: Rehearsal
    device: str
    flops: int
    parts: Sequence[Part]
    bytes_by_operator: Mapping[str, int] = field(default_factory=dict)
    bytes_by_place: Mapping[tuple[str, str], int] = field(default_factory=dict)
    batch_size: int = 1
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
