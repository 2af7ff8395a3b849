"""Mixed precision, and weights, in bfloat16: what is saved for backward is half as large."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn

from tracer.changes.hooks import Hooks
from tracer.workloads.workload import all_tensors


class Bf16(Hooks, makes="bf16"):
    """Has models run under autocast."""

    def in_call(self, model: nn.Module) -> AbstractContextManager[object]:
        """Return autocast for the model's device."""
        device = next((parameter.device.type for parameter in model.parameters()), "cuda")
        return torch.autocast(device, torch.bfloat16)


class Bf16Weights(Bf16, makes="bf16-weights"):
    """Converts real tensors to bfloat16: `module.to` would drop the imaginary part of complex weights.

    The parameter objects stay the same, so that the optimizer still knows them.
    """

    def on_model(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Convert a model's parameters and buffers."""
        for tensor in all_tensors(model):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(torch.bfloat16)
