"""State that has another form between steps: which parameters step together, and that it makes no difference."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from tracer.changes.state_between_steps import StateBetweenSteps


class StateInTwos(StateBetweenSteps):
    """Twice what it is, between steps: of powers of two nothing is lost."""

    part_bytes = 40  # a weight of 3 x 3 has 36 bytes, its bias 12

    def is_worthwhile(self, value: Tensor) -> bool:
        return value.ndim > 0

    def put_away(self, value: Tensor, place: Tensor | None) -> Tensor:
        return value * 2 if place is None else torch.mul(value, 2, out=place)

    def brought_back(self, place: Tensor, device: torch.device) -> Tensor:
        return place / 2


@contextmanager
def hooked(state: StateBetweenSteps) -> Iterator[None]:
    before = register_optimizer_step_pre_hook(state.before_step)
    after = register_optimizer_step_post_hook(state.after_step)
    try:
        yield
    finally:
        before.remove()
        after.remove()


TORCHS: tuple[tuple[type[torch.optim.Optimizer], dict[str, Any]], ...] = (
    (torch.optim.Adadelta, {}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adam, {"amsgrad": True}),
    (torch.optim.Adam, {"foreach": True}),
    (torch.optim.Adamax, {}),
    (torch.optim.AdamW, {"fused": True}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.RMSprop, {"momentum": 0.5}),
    (torch.optim.Rprop, {}),
    (torch.optim.SGD, {"momentum": 0.5, "nesterov": True}),
)


@pytest.mark.parametrize(("kind", "options"), TORCHS, ids=lambda value: getattr(value, "__name__", None))
def test_each_of_torchs_steps_in_parts_as_it_does_whole(
    kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    weights = []
    state = StateInTwos()
    for context in (nullcontext(), hooked(state)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        groups = [{"params": list(part.parameters()), "lr": lr} for part, lr in zip(model, (0.1, 0.2), strict=True)]
        optimizer = kind(groups, **options)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        with context:
            for _ in range(3):
                model(torch.ones(2, 3)).square().sum().backward()
                optimizer.step()
                schedule.step()
        weights.append(list(model.parameters()))
    assert state.num_made and all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_state_of_one_part_has_its_own_form_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    own = inspect.unwrap(torch.optim.Adam.step, stop=lambda step: not hasattr(step, "hooked"))
    stepped: list[int] = []

    def step(optimizer: torch.optim.Adam, closure: Any = None) -> Any:
        stepped.append(sum(len(group["params"]) for group in optimizer.param_groups))
        return own(optimizer, closure)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = torch.optim.Adam(model.parameters())
    with hooked(StateInTwos()):
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    assert stepped == [1, 1, 1, 1, 0] * 2
    assert len(optimizer.param_groups[0]["params"]) == 4


def test_between_steps_it_stays_in_one_place() -> None:
    weight = nn.Parameter(torch.ones(3, 3))
    optimizer = torch.optim.Adam([weight])
    state = StateInTwos()
    with hooked(state):
        places = []
        for _ in range(2):
            weight.grad = torch.ones(3, 3)
            optimizer.step()
            places.append(optimizer.state[weight]["exp_avg"])
    # 0.1 x 1, then 0.9 x 0.1 + 0.1 x 1; twice that between steps.
    assert places[0] is places[1] and torch.allclose(places[0], torch.full((3, 3), 2 * 0.19))
    assert state.num_made == 2


def test_a_hook_of_the_optimizers_own_comes_before_its_step() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    seen: list[tuple[int, bool]] = []
    optimizer.register_step_pre_hook(
        lambda optimizer, *_: seen.append((len(optimizer.param_groups[0]["params"]), bool((weight == 1).all())))
    )
    weight.sum().backward()
    with hooked(StateInTwos()):
        optimizer.step()
    assert seen == [(1, True)] and not (weight == 1).any()
