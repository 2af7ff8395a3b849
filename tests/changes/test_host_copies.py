"""Memory that waits on the host, tried on the CPU: the numbers stay, and only what is worth it moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tracer.changes import host_copies
from tracer.changes.applied import AppliedChanges
from tracer.changes.kinds.saved_on_host import SavedOnHost
from tracer.changes.kinds.state_on_host import StateOnHost


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What went to the host."""
    hosts: list[Tensor] = []

    def copied_to_host(tensor: Tensor) -> Tensor:
        hosts.append(tensor.clone())
        return hosts[-1]

    monkeypatch.setattr(host_copies, "is_worth_moving", lambda tensor: tensor.ndim > 0)
    monkeypatch.setattr(host_copies, "copied_to_host", copied_to_host)
    return hosts


class OwnAdam(torch.optim.Adam):
    """Of a program's own kind: what its step does nobody knows."""


def trained(
    apply: Callable[[], object], kind: type[torch.optim.Adam] = torch.optim.Adam
) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    optimizer = kind(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        apply()
        optimizer.zero_grad()
    return model, optimizer


def test_steps_with_their_state_on_the_host_are_the_same(moved: list[Tensor]) -> None:
    plain, _ = trained(lambda: None)
    with AppliedChanges(["state-on-host"]) as applied:
        changed, optimizer = trained(lambda: None)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), changed.parameters(), strict=True))
    assert len(moved) == 8 and applied.notes == ()  # two averages of four parameters, each in one place for all steps
    waiting = {id(value) for values in optimizer.state.values() for value in values.values()}
    assert {id(tensor) for tensor in moved} <= waiting


def test_state_comes_back_for_a_step_only(moved: list[Tensor]) -> None:
    state = StateOnHost()
    _, optimizer = trained(lambda: None, OwnAdam)
    state.after_step(optimizer, (), {})
    values = next(iter(optimizer.state.values()))
    kept = values["exp_avg"]
    assert any(kept is host for host in moved)
    state.before_step(optimizer, (), {})
    values["exp_avg"] = values["exp_avg"] + 1  # what a step made
    state.after_step(optimizer, (), {})
    assert values["exp_avg"] is kept and len(moved) == 8


def test_state_of_another_type_gets_another_place(moved: list[Tensor]) -> None:
    state = StateOnHost()
    _, optimizer = trained(lambda: None, OwnAdam)
    state.after_step(optimizer, (), {})
    values = next(iter(optimizer.state.values()))
    values["exp_avg"] = values["exp_avg"].double() + 2**-30
    expected = values["exp_avg"].clone()
    state.after_step(optimizer, (), {})
    assert values["exp_avg"] is moved[-1] and torch.equal(values["exp_avg"], expected)


def test_saved_activations_go_to_the_host_and_parameters_stay(moved: list[Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    inputs = torch.ones(2, 3)
    model(inputs).sum().backward()
    own = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with SavedOnHost(model):
        output = model(inputs)
    assert [tensor.shape for tensor in moved] == [(2, 3), (2, 3)]  # the input and tanh's output, not the weight
    output.sum().backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(own, model.parameters(), strict=True))  # type: ignore[arg-type]


def test_only_what_a_models_call_saves_goes_to_the_host(moved: list[Tensor]) -> None:
    model = nn.Linear(3, 3)
    with AppliedChanges(["saved-on-host"]):
        output = model(torch.ones(2, 3))
        assert len(moved) == 1
        output.exp().sum().backward()
        with torch.no_grad():
            model(torch.ones(2, 3))
    assert len(moved) == 1


def test_what_backward_computes_again_stays(moved: list[Tensor]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(2)])
    plain = model(torch.ones(2, 3)).sum()
    plain.backward()
    own = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with AppliedChanges(["checkpoint", "saved-on-host"]) as applied:
        loss = model(torch.ones(2, 3)).sum()
        num_moved = len(moved)
        loss.backward()
    assert applied.hooks["checkpoint"].num_made == 2 and len(moved) == num_moved
    assert all(torch.equal(a, b.grad) for a, b in zip(own, model.parameters(), strict=True))  # type: ignore[arg-type]


def test_gradients_are_gone_behind_the_step() -> None:
    seen: list[bool] = []
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for changes in ([], ["free-gradients"]):
        with AppliedChanges(changes):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            seen.append(model.weight.grad is None)
            optimizer.zero_grad(set_to_none=False)
    assert seen == [False, True]
