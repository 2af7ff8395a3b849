"""Trains on two ranks of the CPU with DistributedDataParallel, and sharded in its place; prints what came of it.

python -m tests.changes.sharded_ranks FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from tracer.changes.applied import AppliedChanges
from tracer.errors import TracerError


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.inner(x))


def made() -> DistributedDataParallel:
    torch.manual_seed(distributed.get_rank())  # which DistributedDataParallel makes equal
    return DistributedDataParallel(nn.Sequential(nn.Sequential(Block(), Block()), nn.Linear(4, 2)))


def trained(changes: list[str]) -> tuple[DistributedDataParallel, list[torch.Tensor], tuple[str, ...]]:
    with AppliedChanges(changes) as applied:
        model = made()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for step in range(3):
            for part in range(2):  # two micro-batches, the first without synchronization
                rows = torch.full((2, 4), 0.1 * (1 + distributed.get_rank() + step + part))
                if part == 0:
                    with model.no_sync():
                        model(rows).square().sum().backward()
                else:
                    model(rows).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    weights: list[Any] = list(model.module.parameters())
    whole = [weight.full_tensor() if isinstance(weight, DTensor) else weight for weight in weights]
    return model, [weight.detach() for weight in whole], applied.notes


def refused() -> str:
    """What is said where an optimizer has the parameters of before."""
    with AppliedChanges(["shard"]):
        inner = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
        DistributedDataParallel(inner)
        try:
            optimizer.step()
        except TracerError as error:
            return str(error)
    return ""


def ran(rank: int, folder: str) -> None:
    distributed.init_process_group("gloo", store=FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    _, plain, _ = trained([])
    model, sharded, notes = trained(["bucket-views", "shard"])
    parts = [weight for weight in model.module.parameters() if isinstance(weight, DTensor)]
    without = AppliedChanges(["shard"])
    error = refused()
    if rank == 0:
        found = {
            "weights_agree": all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, sharded, strict=True)),
            "num_parts": len(parts),
            "is_parallel": isinstance(model, DistributedDataParallel),
            "notes": [*notes, *without.notes],
            "share": parts[0].to_local().numel() / parts[0].numel(),
            "error": error,
        }
        print(json.dumps(found), flush=True)
    distributed.barrier()
    os._exit(0)  # a thread of gloo's that still runs aborts a process that ends in the usual way, once in a while


if __name__ == "__main__":
    start_processes(ran, (sys.argv[1],), nprocs=2, start_method="fork")
