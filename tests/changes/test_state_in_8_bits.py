"""Steps that a library's optimizer makes in the place of Adam, by one that is made up here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tracer.changes.applied import AppliedChanges
from tracer.changes.script_changes import script_changes
from tracer.errors import TracerError, UsageError


class AdamW8bit(torch.optim.AdamW):
    """Torch's own: a library's step has the same result but for rounding."""


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> list[torch.optim.Optimizer]:
    """Optimizers that `torchao.optim.AdamW8bit` made."""
    made: list[torch.optim.Optimizer] = []

    def of_kind(groups: Any) -> torch.optim.Optimizer:
        made.append(AdamW8bit(groups))
        return made[-1]

    module = ModuleType("torchao.optim")
    module.AdamW8bit = of_kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.optim", module)
    monkeypatch.setattr(
        "tracer.changes.script_changes.installed_version", lambda package: "1" if package == "torchao" else ""
    )
    return made


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.changes.script_changes.installed_version", lambda package: "")


def trained(
    optimizer_of: Any = torch.optim.AdamW, changes: Any = ("8-bit-state",), **options: Any
) -> tuple[torch.optim.Optimizer, list[nn.Parameter], tuple[str, ...]]:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = optimizer_of([{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}], **options)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with AppliedChanges(changes) as applied:
        for _ in range(3):
            model(torch.ones(2, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    return optimizer, list(model.parameters()), applied.notes


def test_the_librarys_optimizer_steps_with_the_options_and_the_schedule_of_the_scripts(
    library: list[torch.optim.Optimizer],
) -> None:
    options = {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.5}
    _, plain, _ = trained(changes=(), **options)
    optimizer, changed, notes = trained(**options)
    assert len(library) == 1
    line = "optimizer = torchao.optim.AdamW8bit(model.parameters(), lr=0.1, betas=(0.8, 0.9), weight_decay=0.5)"
    assert notes == (f"In the script that is, with torchao 1: import torchao.optim; {line}",)
    assert all(torch.equal(a, b) for a, b in zip(plain, changed, strict=True))
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]
    assert optimizer.state is library[0].state and len(optimizer.state_dict()["state"]) == 2


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (torch.optim.RMSprop, {}, "RMSprop is not torch's Adam or AdamW."),
        (torch.optim.AdamW, {"amsgrad": True}, "AdamW has amsgrad=True, which optimizers in 8 bits do not know."),
    ],
)
def test_what_it_cannot_stand_for_steps_itself_and_is_named(
    kind: Any, options: dict[str, Any], why: str, library: list[torch.optim.Optimizer]
) -> None:
    optimizer, _, notes = trained(kind, **options)
    assert not library and notes == (f"8-bit-state: {why}",) and len(optimizer.state) == 2


def test_state_that_is_there_already_is_left(library: list[torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.ones(3)
    optimizer.step()
    with AppliedChanges(["8-bit-state"]) as applied:
        optimizer.step()
    assert not library and applied.notes == ("8-bit-state: the optimizer has state already.",)


def test_a_checkpoint_that_is_loaded_later_is_refused(library: list[torch.optim.Optimizer]) -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    with AppliedChanges(["8-bit-state"]):
        weight.grad = torch.ones(3)
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        with pytest.raises(TracerError, match="a checkpoint was loaded") as raised:
            optimizer.step()
    assert "torchao.optim.AdamW8bit" in raised.value.hint


def test_a_group_that_comes_later_is_updated_too(library: list[torch.optim.Optimizer]) -> None:
    first, second = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([first])
    with AppliedChanges(["8-bit-state"]):
        for _ in range(2):
            for weight in (first, second):
                weight.grad = torch.ones(3)
            optimizer.step()
            if len(optimizer.param_groups) == 1:
                assert (second == 1).all()
                optimizer.add_param_group({"params": [second], "lr": 0.5})
    assert torch.allclose(second, torch.full((3,), 0.5 - 0.005))  # 1 - 0.5 x (1 + 0.01), as AdamW's first step


def test_without_a_library_it_cannot_be_applied(no_library: None) -> None:
    with pytest.raises(UsageError, match="8-bit-state cannot be made: neither bitsandbytes nor torchao is installed"):
        script_changes("8-bit-state")
    optimizer, _, notes = trained()
    assert notes == ("8-bit-state: neither bitsandbytes nor torchao is installed.",) and len(optimizer.state) == 2
