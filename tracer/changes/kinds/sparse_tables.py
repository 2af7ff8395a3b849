"""Sparse gradients of large embeddings, for an unchanged script."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tracer.capture.objects.live_tensors import objects_of
from tracer.changes.kinds.sparse_gradients import large_tables, why_not


class SparseTables:
    """Switches embeddings over whose optimizer takes sparse gradients.

    Attributes:
        num_made: How many by now.
        note: Why the last one was not, a sentence.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.num_made = 0
        self.note = "the model has no large embedding with a weight of its own."

    def switch_on(self, model: nn.Module) -> None:
        """Have those of a model make sparse gradients from now on; it is about to be called for the first time."""
        tables = [table for _, table in large_tables(model)]
        if tables and any(isinstance(module, DistributedDataParallel) for module in model.modules()):
            self.note = "DistributedDataParallel was made for dense gradients."
            return
        optimizers: list[torch.optim.Optimizer] = objects_of((torch.optim.Optimizer,)) if tables else []
        for table in tables:
            reasons = [why_not(optimizer, table.weight) for optimizer in optimizers if _has(optimizer, table)]
            if reasons == [""]:
                table.sparse = True
                self.num_made += 1
            else:
                self.note = next(filter(None, reasons), "no optimizer updates a large embedding before its first call.")


def _has(optimizer: torch.optim.Optimizer, table: nn.Embedding) -> bool:
    return any(own is table.weight for group in getattr(optimizer, "param_groups", ()) for own in group["params"])
