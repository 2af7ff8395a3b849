"""Programs for the harness whose last step runs out of memory: in the model, the loss, backward or the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.truth.program import Batch, Program, descend, mlp, program

NUM_SHORT_BATCHES = 4
"""Of `PLAN` of running.py: the batch of the last step is a long one, so that the peak is where the step fails."""
SHORT, LONG = 512, 192 * 1024
"""Rows of a batch. A number for each pair of rows of the long one takes 144 GiB; its tensors fill whole segments."""


def _failing(model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor]) -> Program:
    optimizer, batch, sizes = torch.optim.AdamW(model.parameters()), Batch(), iter([SHORT] * NUM_SHORT_BATCHES + [LONG])

    def step() -> Tensor:
        size = next(sizes)
        x, y = batch.of((torch.randn(size, 64), torch.randn(size, 32)))
        return descend(loss_of(model(x), y), optimizer)

    return Program(step, model, [optimizer], batch)


class _MixedRows(nn.Module):
    """Mixes the rows of a batch by how much alike they are."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ x.T).softmax(-1) @ x


@program(on_device=True, fails=True)
def failing_in_forward() -> Program:
    return _failing(nn.Sequential(mlp(), _MixedRows()), F.mse_loss)


@program(on_device=True, fails=True)
def failing_in_the_loss() -> Program:
    """Rows that are alike and have other targets repel each other."""

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        output, target = F.normalize(torch.cat([output, output.cos()], 1).sigmoid()), F.normalize(target)
        return F.mse_loss(output @ output.T, target @ target.T)

    return _failing(mlp(outputs=256), loss_of)


class _Whitened(torch.autograd.Function):
    """Passes on gradients that are weighted by how much alike rows are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (x @ x.T).softmax(-1) @ grad


class _Whitening(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        whitened: Tensor = _Whitened.apply(x)  # type: ignore[no-untyped-call]
        return whitened


@program(on_device=True, fails=True)
def failing_in_backward() -> Program:
    return _failing(nn.Sequential(mlp(outputs=256), _Whitening(), mlp(256)), F.mse_loss)


@program(on_device=True, fails=True)
def failing_in_backward_beside_the_output() -> Program:
    """The loop has the output in a variable; the loss saves what it makes of it."""
    model, batch = nn.Sequential(mlp(outputs=256), _Whitening(), nn.Linear(256, 1024)), Batch()
    optimizer, sizes = torch.optim.AdamW(model.parameters()), iter([SHORT] * NUM_SHORT_BATCHES + [LONG])

    def step() -> Tensor:
        size = next(sizes)
        x, y = batch.of((torch.randn(size, 64), torch.zeros(size, dtype=torch.long)))
        output = model(x)
        return descend(F.cross_entropy(output, y), optimizer)

    return Program(step, model, [optimizer], batch)


class _Preconditioned(torch.optim.SGD):
    """Momentum of what gradients are without their signs, and after some steps a number for each pair of them."""

    num_steps = 0

    def step(self, closure: Any = None) -> Any:
        parameters = [each for group in self.param_groups for each in group["params"]]
        gradients = [each.grad for each in parameters]
        with torch.no_grad():
            scaled = [each.abs() for each in gradients]
            self.num_steps += 1
            if self.num_steps > NUM_SHORT_BATCHES:
                flat = torch.cat([each.flatten() for each in scaled])
                torch.outer(flat[:LONG], flat[:LONG])
            for gradient, update in zip(gradients, scaled, strict=True):
                gradient.copy_(update)
        return super().step(closure)


@program(on_device=True, fails=True)
def failing_in_the_optimizer() -> Program:
    model, batch = mlp(64, 4096), Batch()
    optimizer = _Preconditioned(model.parameters(), 0.1, momentum=0.9)

    def step() -> Tensor:
        x, y = batch.of((torch.randn(8, 64), torch.randn(8, 32)))
        return descend(F.mse_loss(model(x), y), optimizer)

    return Program(step, model, [optimizer], batch)
