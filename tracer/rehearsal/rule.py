"""What a row of the table of CUDA's differences is made of, and the device that it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tracer.null_gpu.cards import UNNAMED, Card
from tracer.rehearsal.recorder import OperatorCall, Scratch
from tracer.workloads.workload import Workload


class AsksCudnn(Protocol):
    """Somebody who can be asked what cuDNN would take."""

    def workspace_bytes(self, problem: dict[str, Any]) -> int:
        """Workspace of a convolution that is described as for `cudnn_answers.workspace_bytes`."""


@dataclass(slots=True)
class Gpu:
    """The device that is imitated, and what has been taken of it for good."""

    card: Card = UNNAMED  # The card whose rules are followed
    cudnn: AsksCudnn | None = None  # What its convolutions are asked of; None for no workspaces
    # Told of tensors that are not on the device, such as what `save_on_cpu` keeps.
    put_on_host: Callable[[Iterable[Tensor]], None] = lambda tensors: None
    # For rules that have to remember something during a rehearsal, by the rule's name.
    memory: dict[str, Any] = field(default_factory=dict)


ScratchOfGpu = Callable[[OperatorCall, Gpu], Iterable[Scratch]]
Replacement = Callable[[Callable[..., Any], Gpu], Callable[..., Any]]
"""From a function of torch's, and the device, to what stands in its place while a rehearsal runs."""


@dataclass(frozen=True, slots=True)
class CudaRule:
    """A difference between a CUDA device and the CPU. The parts after the first three are optional."""

    name: str  # Name by which the rule can be left out
    source: str  # torch's file and function, or a library's manual
    does: str  # What a CUDA device does, in a sentence
    # Called with every optimizer before the first step.
    optimizer: Callable[[torch.optim.Optimizer], None] | None = None
    # What stands in for operators that are made of others, by name and overload such as `softmax.int`, however the
    # program calls them: imported by name, as a method, from C++.
    operators: Mapping[str, Replacement] = field(default_factory=dict)
    # What stands in for functions of torch's that are no operators, by dotted name.
    functions: Mapping[str, Replacement] = field(default_factory=dict)
    # What operators take beside their results, by name such as `aten::mm`.
    scratch: Mapping[str, ScratchOfGpu] = field(default_factory=dict)
    # In which order operators make their results, by name, where not from the first to the last.
    order: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[None]] | None = None  # Entered while the steps run
    # Called with every module before it is turned into fake tensors; puts parameters into one storage, as moving the
    # module to a device does, and returns their names, or none.
    together: Callable[[nn.Module], list[str]] | None = None
    # Called with the workload before it is turned into fake tensors; what it returns is rehearsed.
    workload: Callable[[Workload], Workload] | None = None
    # Which tensors of an optimizer's state are not on the device.
    on_host: Callable[[torch.optim.Optimizer], Iterable[Tensor]] | None = None
    prepare: Callable[[Gpu], None] | None = None  # Called with the device before anything runs
