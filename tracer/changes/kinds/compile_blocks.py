"""Compiles repeated blocks, each by itself, and not the model, whose own call has begun."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from tracer.changes.hooks import Hooks, Reached


class CompileBlocks(Hooks, makes="compile"):
    """Has `torch.compile` make each block; checkpointing is inside, where torch knows it."""

    is_late = True
    known_after = Reached.START
    note = "the model has no repeated blocks."

    def on_model(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Compile what each block's forward is by now."""
        for block in blocks:
            block.forward = torch.compile(block.forward)
        self.num_made += len(blocks)
