"""Several ranks, each with files of its own, and the summary that rank 0 writes.

torchrun --nproc-per-node 2 examples/torchrun.py [folder] [ddp | fsdp]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the case that the program is not on the path

from tracer import profile_training


def build(parallel: str, device: torch.device) -> nn.Module:
    """A model that all ranks train together."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)).to(device)
    if parallel == "ddp":
        return DistributedDataParallel(model)
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    return model


def main(save_dir: str = "profiler_outputs", parallel: str = "ddp") -> None:
    """Train for 12 steps; each rank has batches of another size."""
    on_cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_cuda else torch.device("cpu")
    if on_cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_cuda else "gloo")
    model = build(parallel, device)
    optimizer = torch.optim.AdamW(model.parameters())

    with profile_training(model, optimizer, save_dir=save_dir) as session:
        for _ in range(12):
            batch = torch.randn(8 * (1 + dist.get_rank()), 32, device=device)
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
    dist.barrier()  # ranks.txt is whole when each rank has left its session
    if dist.get_rank() == 0:
        print((Path(save_dir) / "ranks.txt").read_text())
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:3])
