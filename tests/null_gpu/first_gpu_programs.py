"""Ranks that fill the first GPU in one way or another: `predict --on 2xh100:4GiB first_gpu_programs.py NAME`.

The line that a rank takes memory of the first GPU at ends with `# there`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZE = 2 << 30
LOCAL = int(os.environ["LOCAL_RANK"])


def train(model: nn.Module, device: torch.device | int | str, inputs: torch.Tensor | None = None) -> None:
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], 0.1)
    for _ in range(3):
        model(torch.randn(8, 256, device=device) if inputs is None else inputs.to(device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def replica() -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(256, 256).to(LOCAL), device_ids=[LOCAL])


def a_checkpoint_by_map_location() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        torch.save({"weight": torch.empty(SIZE // 16, dtype=torch.uint8)}, path)
        state = [torch.load(path, map_location="cuda", mmap=True) for _ in range(16)]  # there
    train(replica(), LOCAL)
    assert len(state) == 16


def a_tensor_in_a_hook() -> None:
    kept: list[torch.Tensor] = []

    def keep(*_: object) -> None:
        if not kept:
            kept.append(torch.zeros(SIZE, dtype=torch.uint8, device="cuda"))  # there

    model = replica()
    model.register_forward_hook(keep)
    train(model, LOCAL)


def a_default_device() -> None:
    torch.set_default_device("cuda")
    table = torch.zeros(SIZE // 4)  # there
    torch.set_default_device("cpu")
    train(replica(), LOCAL)
    assert table.is_cuda


def a_library_at_import() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "library_of_tables.py").write_text(
            f"import torch\nTABLE = torch.zeros({SIZE}, dtype=torch.uint8, device='cuda')\n", "utf-8"
        )
        sys.path.insert(0, folder)
        __import__("library_of_tables")  # there
    torch.cuda.set_device(LOCAL)
    train(replica(), LOCAL)


def results_of_an_evaluation() -> None:
    torch.cuda.set_device(LOCAL)
    model = replica()
    train(model, LOCAL)
    with torch.no_grad():
        results = [torch.zeros(SIZE // 8, dtype=torch.uint8, device="cuda:0") for _ in range(8)]  # there
    train(model, LOCAL)
    assert results


def a_loader_that_pins() -> None:
    """Its thread pins on the current device: a context of each rank is on the first GPU, and nothing else."""
    data = torch.utils.data.TensorDataset(torch.randn(24, 256))
    model = replica()
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True, num_workers=1):
        train(model, LOCAL, batch)


def a_synchronization() -> None:
    torch.cuda.synchronize()
    train(replica(), LOCAL)


def each_on_its_own() -> None:
    torch.cuda.set_device(LOCAL)
    kept = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
    train(replica(), LOCAL)
    assert kept.is_cuda


if __name__ == "__main__":
    dist.init_process_group("nccl")
    globals()[sys.argv[1]]()
