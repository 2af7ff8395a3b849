"""Programs that keep memory which nobody needs, one for each way; the line that does it says so in a comment."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NUM_STEPS = 6
Profile = Callable[..., Any]
"""As `profile_training`, with all but model and optimizer given."""


@dataclass(frozen=True, slots=True)
class Wasteful:
    """A program and what is to be found in it.

    Attributes:
        run: Trains, under a profile.
        kind: Of the finding, by its name.
        held: What the way to what is kept has in it; empty where nothing is held by a variable.
    """

    run: Callable[[Profile], None]
    kind: str
    held: str = ""

    @property
    def line(self) -> int:
        """The line with the comment."""
        name = f"# waste: {self.run.__name__}"
        lines = Path(__file__).read_text().splitlines()
        (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(name)]
        return found


PROGRAMS: dict[str, Wasteful] = {}


def wasteful(kind: str, held: str = "") -> Callable[[Callable[[Profile], None]], Callable[[Profile], None]]:
    """Enter a program under its own name."""

    def enter(run: Callable[[Profile], None]) -> Callable[[Profile], None]:
        PROGRAMS[run.__name__] = Wasteful(run, kind, held)
        return run

    return enter


def mlp(width: int = 128) -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8))


def pair(size: int = 256) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 32), torch.randn(size, 8)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, size: int = 256) -> float:
    """A step as it should be."""
    x, y = pair(size)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def each_step(profile: Profile, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[int]:
    """The steps of a training under a profile."""
    with profile(model, optimizer) as session:
        for number in range(NUM_STEPS):
            yield number
            session.step()


# ---- graphs ----------------------------------------------------------------------------------------------------------


@wasteful("GRAPH", "losses[...]")
def losses_with_graphs(profile: Profile) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    losses = []
    for _ in each_step(profile, model, optimizer):
        train(model, optimizer)
        x, y = pair()
        losses.append(F.mse_loss(model(x), y))  # waste: losses_with_graphs


@wasteful("EVALUATION")
def evaluation_with_gradients(profile: Profile) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    x, y = pair(1024)

    def evaluate() -> float:
        model.eval()
        result = F.mse_loss(model(x), y).item()  # waste: evaluation_with_gradients
        model.train()
        return result

    for _ in each_step(profile, model, optimizer):
        train(model, optimizer)
        evaluate()


@wasteful("RETAINED", "loss -> graph of the tensor")
def retained_graph(profile: Profile) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in each_step(profile, model, optimizer):
        x, y = pair()
        loss = F.mse_loss(model(x), y)
        loss.backward(retain_graph=True)  # waste: retained_graph
        optimizer.step()
        optimizer.zero_grad()


@wasteful("GRAPH", "total")
def sum_of_losses(profile: Profile) -> None:
    """Without a list, and as long: each sum has the graph of the one before."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    total = torch.zeros(())
    for _ in each_step(profile, model, optimizer):
        train(model, optimizer)
        x, y = pair()
        total = total + F.mse_loss(model(x), y)  # waste: sum_of_losses


# ---- gradients -------------------------------------------------------------------------------------------------------


class _Wide(nn.Module):
    """Its peak is in forward, in what it makes on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 1024), nn.Linear(1024, 8)
        self.mean = nn.Parameter(torch.zeros(64, 1024))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = torch.ones(300_000).mul(x.mean()).mean()
        y: Tensor = self.last(self.first(x / (1 + scale.abs())) + self.mean.mean(0))
        return y


@wasteful("GRADIENTS")
def gradients_set_to_zero(profile: Profile) -> None:
    model = _Wide()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in each_step(profile, model, optimizer):
        x, y = pair(16)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # waste: gradients_set_to_zero


@wasteful("GRADIENTS")
def gradients_let_go_of_late(profile: Profile) -> None:
    model = _Wide()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in each_step(profile, model, optimizer):
        x, y = pair(16)
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()  # waste: gradients_let_go_of_late
        loss.backward()
        optimizer.step()


# ---- weights ---------------------------------------------------------------------------------------------------------


@wasteful("WEIGHTS", "best")
def copy_of_the_best_weights(profile: Profile) -> None:
    model = mlp(256)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    best = copy.deepcopy(model.state_dict())  # waste: copy_of_the_best_weights
    for _ in each_step(profile, model, optimizer):
        train(model, optimizer, 64)
    model.load_state_dict(best)


@wasteful("WEIGHTS", "first")
def copy_of_the_model(profile: Profile) -> None:
    model = mlp(256)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    first = copy.deepcopy(model)  # waste: copy_of_the_model
    for _ in each_step(profile, model, optimizer):
        train(model, optimizer, 64)
    del first


# ---- conversions -----------------------------------------------------------------------------------------------------


@wasteful("WIDENED")
def logits_in_32_bits(profile: Profile) -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4096)).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in each_step(profile, model, optimizer):
        x, classes = torch.randn(64, 32, dtype=torch.bfloat16), torch.randint(4096, (64,))
        logits = model(x).float()  # waste: logits_in_32_bits
        loss = F.cross_entropy(logits, classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


# ---- results that are kept -------------------------------------------------------------------------------------------


@wasteful("TENSORS", "outputs[...]")
def outputs_in_a_dict(profile: Profile) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    outputs: dict[int, Tensor] = {}
    for number in each_step(profile, model, optimizer):
        x, y = pair(1024)
        out = model(x)
        loss = F.mse_loss(out, y)
        loss.backward()
        outputs[number] = out.detach() * 2  # waste: outputs_in_a_dict
        optimizer.step()
        optimizer.zero_grad()


@wasteful("TENSORS", "seen[...]")
def hook_that_keeps_activations(profile: Profile) -> None:
    model = mlp()
    seen: list[Tensor] = []

    def look(module: nn.Module, args: Any, result: Tensor) -> None:
        seen.append(result.detach())  # waste: hook_that_keeps_activations

    model[0].register_forward_hook(look)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in each_step(profile, model, optimizer):
        train(model, optimizer)


class _Remembers(nn.Module):
    """Keeps what only its forward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 256), nn.Linear(256, 8)
        self.hidden: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.first(x)  # waste: attribute_with_the_last_result
        y: Tensor = self.last(self.hidden.relu())
        return y


@wasteful("TENSORS", "model.hidden")
def attribute_with_the_last_result(profile: Profile) -> None:
    model = _Remembers()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in each_step(profile, model, optimizer):
        train(model, optimizer)


_FEATURES: dict[int, Tensor] = {}


@wasteful("TENSORS", "_FEATURES[...]")
def cache_of_features(profile: Profile) -> None:
    model, frozen = mlp(), nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    _FEATURES.clear()
    for number in each_step(profile, model, optimizer):
        x, y = pair()
        with torch.no_grad():
            _FEATURES[number] = frozen(x)  # waste: cache_of_features
        loss = F.mse_loss(model(_FEATURES[number]), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
