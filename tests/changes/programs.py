"""Programs small enough to be tried with every change, and large enough that something can be saved."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracer.changes.planner import Advice, advise
from tracer.workloads.factory import shipped_model
from tracer.workloads.module_steps import SupervisedWorkload
from tracer.workloads.workload import Workload


def fno() -> Workload:
    """Activations of complex numbers, a loss that is a sum."""
    fno = shipped_model("fno_workload")
    settings = fno.FnoSettings(batch_size=4, hidden_channels=16, data_size=32, n_modes=8)
    workload: Workload = fno.build_fno_workload(settings, device="cpu")
    return workload


def gpt() -> Workload:
    """Repeated blocks, and logits that count."""
    workload: Workload = shipped_model("gpt").build(batch_size=4, vocabulary=2048, n_layers=4, context=128)
    return workload


def resnet() -> Workload:
    """Batch norms, and blocks of different sizes."""
    workload: Workload = shipped_model("resnet").build(batch_size=4)
    return workload


def lstm() -> Workload:
    """No blocks at all."""
    workload: Workload = shipped_model("lstm").build(batch_size=16, length=64, width=64)
    return workload


class _Stage(nn.Module):
    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.second(self.activation(self.first(x))))
        return y


class UNet(nn.Module):
    """Stages that are attributes and no list, with skips across."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1, self.down2 = _Stage(3, width), _Stage(width, 2 * width)
        self.bottom = _Stage(2 * width, 4 * width)
        self.up2, self.up1 = _Stage(6 * width, 2 * width), _Stage(3 * width, width)
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, 3, S, S] to [B, 1, S, S]."""
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        y = self.bottom(F.max_pool2d(b, 2))
        y = self.up2(torch.cat([F.interpolate(y, scale_factor=2), b], 1))
        y = self.up1(torch.cat([F.interpolate(y, scale_factor=2), a], 1))
        result: Tensor = self.head(y)
        return result


def unet() -> Workload:
    """A model of this file's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = UNet()
    generator = torch.Generator().manual_seed(0)

    def next_batch() -> tuple[Tensor, ...]:
        return torch.randn(4, 3, 48, 48, generator=generator), torch.randn(4, 1, 48, 48, generator=generator)

    return SupervisedWorkload(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        next_batch=next_batch,
        loss=F.mse_loss,
        device=torch.device("cpu"),
        description={},
    )


class Stack(nn.Module):
    """Four equal blocks, which take a moment to rehearse."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.Sigmoid(), nn.Linear(2 * width, width)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, W] to [B, W]."""
        for block in self.blocks:
            x = x + block(x)
        return x


def stack() -> Workload:
    """Activations that are most of it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Stack()
    generator = torch.Generator().manual_seed(0)
    return SupervisedWorkload(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        next_batch=lambda: (torch.randn(512, 64, generator=generator), torch.randn(512, 64, generator=generator)),
        loss=F.mse_loss,
        device=torch.device("cpu"),
        description={},
    )


PROGRAMS = {"stack": stack, "fno": fno, "gpt": gpt, "resnet": resnet, "lstm": lstm, "unet": unet}


@cache
def advice_for(name: str, target_bytes: int | None = None) -> Advice:
    return advise(PROGRAMS[name], device="cpu", target_bytes=target_bytes)
