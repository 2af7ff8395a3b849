"""Training steps that broke one of the originals of the SQLite reports, beside those of `tests.training_steps`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training_steps import Between, Builder, Workload, mlp, mlp_batch, training

REPORT_WORKLOADS: dict[str, Builder] = {}


def case(build: Builder) -> Builder:
    """Enter a builder under its own name."""
    REPORT_WORKLOADS[build.__name__] = build
    return build


def _pair() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 32), torch.randn(16, 32)


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


@case
def residual() -> Workload:
    return training(_Residual(), _pair)


class _Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(5):
            x = torch.tanh(self.linear(x))
        return x


@case
def loop() -> Workload:
    return training(_Loop(), _pair)


@case
def backward_function() -> Workload:
    """`torch.autograd.backward(loss)` instead of `loss.backward()`."""
    model = mlp()

    def step() -> None:
        inputs, target = mlp_batch()
        torch.autograd.backward(F.mse_loss(model(inputs), target))
        model.zero_grad()

    return Workload(step, model)


@case
def retain_graph() -> Workload:
    """One graph, two backwards."""
    model = mlp()

    def step() -> None:
        inputs, target = mlp_batch()
        loss = F.mse_loss(model(inputs), target)
        loss.backward(retain_graph=True)
        loss.backward()
        model.zero_grad()

    return Workload(step, model)


@case
def held_output() -> Workload:
    """The output, which the loss saves, outlives backward."""
    model = mlp()

    def step() -> None:
        inputs, target = mlp_batch()
        output = model(inputs)
        F.mse_loss(output, target).backward()
        output.detach().abs().mean().item()
        model.zero_grad()

    return Workload(step, model)


class _Unread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * (float(x.shape[0]) / 8)


@case
def saved_unread() -> Workload:
    """A function that saves a tensor and then only asks for its shape."""
    return training(Between(_Unread.apply), mlp_batch)


@case
def every_other_step() -> Workload:
    """A step that takes one more layer every second time."""
    model = nn.ModuleDict({"first": nn.Linear(32, 32), "extra": nn.Linear(32, 32), "last": nn.Linear(32, 8)})
    number = 0

    def step() -> None:
        nonlocal number
        inputs, target = mlp_batch()
        x = model["first"](inputs)
        if number % 2:
            x = model["extra"](x).relu()
        number += 1
        F.mse_loss(model["last"](x), target).backward()
        model.zero_grad()

    return Workload(step, model)


@case
def auxiliary_head() -> Workload:
    """A part of the graph through which no backward runs."""
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 8), nn.Linear(64, 3))

    def step() -> None:
        inputs, target = mlp_batch()
        hidden = model[0](inputs)
        model[2](hidden).sin()
        F.mse_loss(model[1](hidden), target).backward()
        model.zero_grad()

    return Workload(step, model)


class _RebindingDescent(torch.optim.Optimizer):
    """Gives every parameter a new storage at each step, and keeps the old ones.

    torch's profiler gives a block from before the recording, whose free it does not report, one number with the block
    that lies at its address next: in steps of a millisecond that happened in one recording of three.
    """

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.replaced: list[Tensor] = []

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self.replaced.append(parameter.data)
                parameter.data = parameter.data - 0.01 * parameter.grad


@case
def rebinding_optimizer() -> Workload:
    """Parameters that the optimizer made inside the recording."""
    model = mlp()
    return training(model, mlp_batch, optimizer=_RebindingDescent(model.parameters()))
