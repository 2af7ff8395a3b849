"""Programs for the harness that keep memory, or go on with another optimizer or model."""

from __future__ import annotations

import copy
import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.truth.program import Batch, Program, descend, mlp, program


def _pairs() -> tuple[Tensor, Tensor]:
    return torch.randn(256, 64), torch.randn(256, 32)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A step as it should be: the loss and the result, without their graph."""
    output = model(x)
    return descend(F.mse_loss(output, y), optimizer, clear_first=True), output.detach()


class _CachingLoop:
    """Keeps a result of each step under a name."""

    def __init__(self, batch: Batch) -> None:
        self.model, self.batch, self.cache = mlp(), batch, dict[str, Tensor]()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)

    def step(self) -> float:
        x, y = self.batch.of(_pairs())
        loss, output = _train(self.model, self.optimizer, x, y)
        self.cache[f"step {len(self.cache)}"] = output.repeat(1, 4)
        return loss.item()


@program()
def cache_in_an_attribute() -> Program:
    batch = Batch()
    trainer = _CachingLoop(batch)
    return Program(trainer.step, trainer.model, [trainer.optimizer], batch)


@program()
def best_weights_so_far() -> Program:
    model, batch = mlp(), Batch()
    best = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> float:
        loss, _ = _train(model, optimizer, *batch.of(_pairs()))
        if not torch.isfinite(loss):
            model.load_state_dict(best)
        return loss.item()

    return Program(step, model, [optimizer], batch, held=[step])


@program()
def penalty_of_gradients() -> Program:
    """A gradient of a gradient in every second step, as R1 has; nothing says `retain`."""
    model, batch, steps = mlp(), Batch(), itertools.count()
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> float:
        x, y = batch.of(_pairs())
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if next(steps) % 2 == 0:
            x.requires_grad_(True)
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            gradient.square().sum().backward()
        optimizer.step()
        return loss.item()

    return Program(step, model, [optimizer], batch)


@program()
def optimizers_replaced() -> Program:
    model, batch, steps = mlp(), Batch(), itertools.count(1)
    built = Program(lambda: None, model, [torch.optim.Adam(model.parameters())], batch)
    optimizers = built.optimizers

    def step() -> float:
        loss, _ = _train(model, optimizers[0], *batch.of(_pairs()))
        if next(steps) == 2:
            optimizers[0] = torch.optim.SGD(model.parameters(), 0.01)
        return loss.item()

    built.step = step
    return built


@program()
def network_that_grows() -> Program:
    """Another network and another optimizer from the third step on."""
    batch, steps = Batch(), itertools.count(1)
    built = Program(lambda: None, mlp(), [], batch)
    assert built.model is not None
    built.optimizers.append(torch.optim.Adam(built.model.parameters()))

    def step() -> float:
        assert built.model is not None
        loss, _ = _train(built.model, built.optimizers[0], *batch.of(_pairs()))
        if next(steps) == 2:
            built.model = mlp(hidden=320)
            built.optimizers[0] = torch.optim.Adam(built.model.parameters())
        return loss.item()

    built.step = step
    return built
