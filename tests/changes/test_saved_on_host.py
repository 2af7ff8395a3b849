"""Memory that waits on the host, tried on the CPU: the numbers stay, and only what is worth it moves."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tracer.changes.applied import AppliedChanges
from tracer.changes.kinds import saved_on_host
from tracer.changes.kinds.saved_on_host import SavedOnHost


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What went to the host."""
    hosts: list[Tensor] = []

    def copied_to_host(tensor: Tensor) -> Tensor:
        hosts.append(tensor.clone())
        return hosts[-1]

    monkeypatch.setattr(saved_on_host, "_is_worth_moving", lambda tensor: tensor.ndim > 0)
    monkeypatch.setattr(saved_on_host, "_copied_to_host", copied_to_host)
    return hosts


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
