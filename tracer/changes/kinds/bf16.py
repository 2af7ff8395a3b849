"""Mixed precision, and weights, in bfloat16: what is saved for backward is half as large."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import nn

from tracer.changes.change import Change, ForwardUnder, Situation, Stage
from tracer.changes.hooks import Hooks
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.module_steps import StepWorkload
from tracer.workloads.module_tensors import all_tensors
from tracer.workloads.workload import Workload


class Bf16(Hooks, makes="bf16"):
    """Has models run under autocast."""

    def in_call(self, model: nn.Module) -> AbstractContextManager[object]:
        """Return autocast for the model's device."""
        device = next((parameter.device.type for parameter in model.parameters()), "cuda")
        return torch.autocast(device, torch.bfloat16)


def _under_autocast(workload: Workload) -> Workload:
    return ForwardUnder(workload, partial(torch.autocast, workload.device.type, dtype=torch.bfloat16))


def _runs_on_cpu(model: nn.Module) -> bool:
    """Whether the CPU has bfloat16 for all layers: oneDNN has none for recurrent ones without AVX-512, and raises."""
    has_recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    return not has_recurrent or "AVX512" in torch.backends.cpu.get_cpu_capability()


def candidates(situation: Situation) -> Iterator[Change]:
    """One, where the program has no mixed precision and parameters in float32, and the device can do it."""
    workload = situation.workload
    if isinstance(workload, StepWorkload) or getattr(workload, "amp", "off") != "off":
        return
    if situation.device == "cpu" and not _runs_on_cpu(situation.model):
        return
    if not any(parameter.dtype == torch.float32 for parameter in situation.model.parameters()):
        return
    yield Change(
        name="bfloat16 autocast",
        family="precision",
        group=Group.ARITHMETIC,
        keeps=Keeps.CONVERGENCE,
        lines=(
            f'with torch.autocast("{situation.device}", dtype=torch.bfloat16):',
            "    loss = loss_fn(model(inputs), targets)",
        ),
        apply=_under_autocast,
        stage=Stage.STEP,
        needs="Products are rounded to 8 bits of mantissa.",
    )


class Bf16Weights(Bf16, makes="bf16-weights"):
    """Converts real tensors to bfloat16: `module.to` would drop the imaginary part of complex weights.

    The parameter objects stay the same, so that the optimizer still knows them.
    """

    def on_model(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Convert a model's parameters and buffers."""
        for tensor in all_tensors(model):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(torch.bfloat16)
