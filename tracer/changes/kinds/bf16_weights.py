"""Weights in bfloat16, and with them gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tracer.changes.kinds.bf16_autocast import Bf16
from tracer.workloads.module_tensors import all_tensors


class Bf16Weights(Bf16, makes="bf16-weights"):
    """Converts real tensors to bfloat16: `module.to` would drop the imaginary part of complex weights.

    The parameter objects stay the same, so that the optimizer still knows them.
    """

    def on_model(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Convert a model's parameters and buffers."""
        for tensor in all_tensors(model):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(torch.bfloat16)
