"""Steps that a library's optimizer makes in the place of Adam, by one that is made up here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tracer.changes.applied import AppliedChanges
from tracer.changes.kinds.state_in_8_bits import EightBitLibrary, MadeSteps, keep_options, library_for
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


@pytest.mark.parametrize(
    ("optimizer_of", "package", "why"),
    [
        (lambda p: torch.optim.AdamW(p), "bitsandbytes", ""),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), "torchao", ""),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), "bitsandbytes", "bitsandbytes cannot stand for it;"),
        (lambda p: torch.optim.SGD(p), "bitsandbytes", "SGD is not torch's Adam or AdamW."),
        (lambda p: torch.optim.Adam(p, maximize=True), "torchao", "Adam has maximize=True,"),
        (lambda p: torch.optim.Adam([torch.ones(2, dtype=torch.complex64)]), "torchao", "some parameters are complex."),
        (lambda p: torch.optim.Adam(p), "", "neither bitsandbytes nor torchao is installed."),
    ],
)
def test_what_a_library_can_stand_for(optimizer_of: object, package: str, why: str) -> None:
    optimizer = optimizer_of([torch.nn.Parameter(torch.ones(2))])  # type: ignore[operator]
    library, reason = library_for(optimizer, [EightBitLibrary(package)] if package else [])
    assert (library is None) == bool(why) and reason.startswith(why)


def test_a_rate_that_is_a_tensor_is_filled_and_stays_the_same_one() -> None:
    own = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], lr=torch.tensor(0.1))
    rate = own.param_groups[0]["lr"]
    keep_options(own, [{**own.param_groups[0], "lr": 0.05, "weight_decay": 0.5}])
    assert own.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.05)
    assert own.param_groups[0]["weight_decay"] == 0.5


def test_torchs_step_finds_nothing_to_update() -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    own, steps = optimizer.param_groups, MadeSteps()
    assert steps.begin(optimizer) is own
    steps.made(optimizer)
    assert (optimizer.param_groups[0]["params"], optimizer.param_groups[0]["lr"]) == ([], 1.0)
    optimizer.step()
    assert weight.tolist() == [1, 1]
    assert steps.end(optimizer) and optimizer.param_groups is own
    assert not steps.end(optimizer)
    optimizer.step()
    assert weight.tolist() == [0, 0]


def test_a_step_that_has_no_end_gives_the_parameters_to_the_next() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight])
    own, steps = optimizer.param_groups, MadeSteps()
    steps.made(optimizer)
    assert steps.begin(optimizer) is own and optimizer.param_groups is own
