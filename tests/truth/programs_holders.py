"""Programs for the harness that keep memory in one way each, and say what frees it; and some that keep none."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.truth.program import Batch, Program, descend, mlp, program

HISTORY: list[Tensor] = []


def _pairs() -> tuple[Tensor, Tensor]:
    return torch.randn(256, 64), torch.randn(256, 32)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A step as it should be: the loss and the result, without their graph."""
    output = model(x)
    return descend(F.mse_loss(output, y), optimizer, clear_first=True), output.detach()


def _training(after: Callable[[Tensor, Tensor], object], model: nn.Module | None = None, **more: Any) -> Program:
    """Such a step, and what comes after it, which is told the loss and the result."""
    model, batch = model or mlp(), Batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> float:
        loss, output = _train(model, optimizer, *batch.of(_pairs()))
        after(loss, output)
        return loss.item()

    return Program(step, model, [optimizer], batch, **more)


@program()
def losses_in_a_list() -> Program:
    model, losses, batch = mlp(), list[Tensor](), Batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> float:
        x, y = batch.of(_pairs())
        loss, _ = _train(model, optimizer, x, y)
        losses.append(F.mse_loss(model(x), y))
        return loss.item()

    return Program(step, model, [optimizer], batch, keeps="losses")


@program()
def losses_of_weights_themselves() -> Program:
    """What `exp` saves has the sizes of the weights, and is no copy of them."""
    model, losses, batch = mlp(), list[Tensor](), Batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> float:
        x, y = batch.of(_pairs())
        loss = F.mse_loss(model(x), y)
        for parameter in model.parameters():
            loss = loss + parameter.exp().sum() * 1e-6
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        losses.append(loss)
        return loss.item()

    return Program(step, model, [optimizer], batch, keeps="losses")


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
    return Program(trainer.step, trainer.model, [trainer.optimizer], batch, keeps="cache")


@program()
def outputs_in_a_global_list() -> Program:
    return _training(lambda loss, output: HISTORY.append(output.repeat(1, 4)), keeps="HISTORY")


@program()
def hook_with_a_list() -> Program:
    model, seen = mlp(), list[Tensor]()

    def look(module: nn.Module, args: Any, result: Tensor) -> None:
        seen.append(result.detach())

    model[0].register_forward_hook(look)
    return _training(lambda loss, output: None, model, keeps="seen")


@program()
def last_result_in_a_variable_too() -> Program:
    """The newest result is in the list and in a variable: neither alone keeps it."""
    model, results, last, batch = mlp(), list[Tensor](), dict[str, Tensor](), Batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step() -> float:
        loss, output = _train(model, optimizer, *batch.of(_pairs()))
        last["x"] = output.repeat(1, 4)
        results.append(last["x"])
        return loss.item()

    return Program(step, model, [optimizer], batch, held=last, keeps="results")


@program()
def average_of_weights_now_and_then() -> Program:
    """No recorded step needs it, and a later one does."""
    model, steps = mlp(), itertools.count(1)
    average = copy.deepcopy(model).requires_grad_(False)

    def follow(loss: Tensor, output: Tensor) -> None:
        if next(steps) % 10 == 0:
            with torch.no_grad():
                for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)

    return _training(follow, model, others={"average": average})


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

    return Program(step, model, [optimizer], batch, held=[step], keeps="best")


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
