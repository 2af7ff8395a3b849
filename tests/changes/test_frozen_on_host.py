"""Frozen weights that wait on the host, tried on the CPU: gradients stay, and nothing is saved in their place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tracer.changes.applied import AppliedChanges
from tracer.changes.kinds import frozen_on_host


class Adapted(nn.Module):
    """A frozen layer and a trained one beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.adapter = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.base(x) + self.adapter(x))


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What was brought to the device; it is made of nothing when it is let go of."""
    brought: list[Tensor] = []

    def bring(tensor: Tensor, device: torch.device) -> Tensor:
        brought.append(tensor.clone())
        return brought[-1]

    monkeypatch.setattr(frozen_on_host, "is_worth_moving", lambda tensor: True)
    monkeypatch.setattr(frozen_on_host, "copied_to_host", Tensor.clone)
    monkeypatch.setattr(frozen_on_host, "copied_to_device", bring)
    return brought


def model_of(num_blocks: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[Adapted() for _ in range(num_blocks)])


def gradients(model: nn.Module) -> list[Tensor]:
    model.zero_grad()
    model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("more", [(), ("checkpoint",)])
def test_gradients_are_the_same(more: tuple[str, ...], copies: list[Tensor]) -> None:
    own = gradients(model_of(3))
    model = model_of(3)
    with AppliedChanges(["frozen-on-host", *more]) as applied:
        found = gradients(model)
        found = gradients(model)
    assert len(own) == len(found) == 6 and all(torch.equal(a, b) for a, b in zip(own, found, strict=True))
    # The first parameter stays, by which programs know where a model is.
    assert applied.hooks["frozen-on-host"].num_made == 2 and applied.notes == ()
    # Two weights, in two steps: for forward, again where that is computed again, and for backward.
    assert len(copies) == 2 * 2 * (3 if more else 2)


def test_no_copy_outlives_its_use(copies: list[Tensor]) -> None:
    model = model_of(2)
    with AppliedChanges(["frozen-on-host"]):
        output = model(torch.ones(2, 4))
    (copy,) = copies
    place = copy.untyped_storage()
    copies.clear()
    del copy
    kept = model[1].base.weight  # type: ignore[index, union-attr]
    assert kept.untyped_storage().data_ptr() != place.data_ptr()
    place.resize_(0)  # whoever has it would find nothing
    output.sum().backward()
    assert torch.equal(model.state_dict()["1.base.weight"], model_of(2).state_dict()["1.base.weight"])


def test_a_weight_that_is_trained_later_stays_on_the_device(copies: list[Tensor]) -> None:
    model = model_of(2)
    with AppliedChanges(["frozen-on-host"]):
        gradients(model)
        model.requires_grad_(True)
        found = gradients(model)
    assert len(found) == 8 and model[1].base.weight.data_ptr() == copies[-1].data_ptr()  # type: ignore[index, union-attr]
