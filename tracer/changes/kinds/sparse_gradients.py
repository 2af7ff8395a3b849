"""Sparse gradients of large embeddings: rows that a batch has looked up, and not the whole table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tracer.capture.objects.live_tensors import objects_of
from tracer.changes.change import Change, Situation, inmost
from tracer.changes.hooks import Hooks, Reached
from tracer.changes.recommendation import Group, Keeps
from tracer.workloads.module_steps import StepWorkload

_LEAST_BYTES = 1 << 20
_WORTHWHILE = 0.05
"""Of the peak: the gradient of a smaller table is not worth a line."""


class SparseTables(Hooks, makes="sparse-gradients"):
    """Switches embeddings over whose optimizer takes sparse gradients; notes why the last one was not."""

    known_after = Reached.CALL
    note = "the model has no large embedding with a weight of its own."

    def on_model(self, model: nn.Module, blocks: Sequence[nn.Module]) -> None:
        """Have the embeddings of a model make sparse gradients from now on."""
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


def candidates(situation: Situation) -> Iterator[Change]:
    """One for all large tables that the optimizer takes sparse gradients of."""
    workload = situation.workload
    optimizer = workload.optimizer
    if optimizer is None or isinstance(inmost(workload), StepWorkload):
        return
    tables = [name for name, table in large_tables(situation.model) if not why_not(optimizer, table.weight)]
    if tables:
        yield Change(
            name=f"sparse gradients of {', '.join(tables)}",
            family="sparse gradients",
            excludes=("gradients",),
            group=Group.MEMORY,
            keeps=Keeps.ROUNDING,
            lines=tuple(f'model.get_submodule("{name}").sparse = True' for name in tables),
            needs="Nothing else reads or clips these gradients.",
        )


def not_tried(situation: Situation) -> Iterator[tuple[str, str]]:
    """Tables of a good part of the peak whose optimizer takes no sparse gradients: a name, and why."""
    optimizer = situation.workload.optimizer
    if optimizer is None:
        return
    for name, table in large_tables(situation.model):
        reason = why_not(optimizer, table.weight)
        if reason and _bytes_of(table) >= _WORTHWHILE * situation.peak_bytes:
            yield f"sparse gradients of {name}", reason


def large_tables(model: nn.Module) -> Iterator[tuple[str, nn.Embedding]]:
    """Names and modules of embeddings with a dense gradient that could be sparse, and that nothing else adds to."""
    modules = dict(model.named_modules())
    uses = Counter(id(weight) for module in modules.values() for weight in module.parameters(recurse=False))
    for name, module in modules.items():
        if (
            type(module) is nn.Embedding
            and not module.sparse
            and not module.scale_grad_by_freq  # which torch has for dense gradients alone
            and module.weight.requires_grad
            and not hasattr(module.weight, "placements")  # of what is sharded
            and uses[id(module.weight)] == 1
            and _bytes_of(module) >= _LEAST_BYTES
        ):
            yield name, module


def why_not(optimizer: torch.optim.Optimizer, weight: Tensor) -> str:
    """Why an optimizer takes no sparse gradient of a weight, a sentence; empty where it does.

    Momentum of sparse gradients grows with every step, and weight decay is of all rows.
    """
    kind = type(optimizer)
    groups = [group for group in optimizer.param_groups if any(own is weight for own in group["params"])]
    if not groups:
        return "another optimizer updates it, or none."
    if kind not in (torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad):
        return f"{kind.__name__} takes none; SparseAdam, SGD and Adagrad do."
    if used := [name for name in ("momentum", "weight_decay", "fused") if groups[0].get(name)]:
        return f"{kind.__name__} takes none with {used[0]}."
    return ""


def _bytes_of(table: nn.Embedding) -> int:
    return table.weight.numel() * table.weight.element_size()
