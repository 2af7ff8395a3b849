"""Optimizers with state in 8 bits: their size, what they stand for, what is offered, and that the lines do it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch

from tests.changes.programs import PROGRAMS
from tracer.changes.kinds import state_in_8_bits
from tracer.changes.kinds.state_in_8_bits import AsLarge, EightBitLibrary, keep_options, library_for
from tracer.changes.planner import _Trials, advise
from tracer.changes.script_changes import PACKAGES
from tracer.workloads.workload import Workload


def program() -> Workload:
    return PROGRAMS["lstm"]()


def bytes_of(optimizer: torch.optim.Optimizer) -> int:
    tensors = [value for values in optimizer.state.values() for value in values.values()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_state_has_a_byte_and_a_64th_for_each_element_where_it_is_not_small() -> None:
    parameters = [torch.nn.Parameter(torch.ones(size)) for size in (4096, 4095, 5000, 7)]
    for parameter in parameters[:3]:
        parameter.grad = torch.ones_like(parameter)
    # Scales of 256 elements, in four bytes: 16 of 4,096 elements, and 20 of 5,000.
    for package, expected in (
        ("bitsandbytes", 2 * (4096 + 64 + 4 * 4095 + 5000 + 80)),
        ("torchao", 2 * (4096 + 64 + 4 * 4095 + 4 * 5000)),
    ):
        optimizer = EightBitLibrary(package).as_large(torch.optim.AdamW(parameters).param_groups)
        for _ in range(2):
            optimizer.step()
        assert bytes_of(optimizer) == expected


def test_a_library_that_is_not_installed_is_named_and_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.changes.script_changes.installed_version", lambda package: "")
    advice = advise(program, device="cuda")
    reasons = dict(advice.not_tried)
    assert reasons == {"Adam with state in 8 bits": "neither bitsandbytes nor torchao is installed."}
    assert not any("8bit" in outcome.name for outcome in advice.outcomes)
    assert not list(state_in_8_bits.not_tried(_Trials(program, "cpu", {}).situation))


def test_each_library_that_is_installed_is_rehearsed_and_its_lines_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.changes.script_changes.installed_version", lambda package: "1.0")
    for package in PACKAGES:
        module = ModuleType(f"{package}.optim")
        module.Adam8bit = torch.optim.Adam  # type: ignore[attr-defined]
        parent = ModuleType(package)
        parent.optim = module  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, package, parent)
        monkeypatch.setitem(sys.modules, f"{package}.optim", module)
    trials = _Trials(program, "cuda", {})
    changes = list(state_in_8_bits.candidates(trials.situation))
    assert [change.name for change in changes[:2]] == [
        "bitsandbytes.optim.Adam8bit instead of Adam",
        "torchao.optim.Adam8bit instead of Adam",
    ]
    for change in changes[:2]:
        outcome = trials.outcome((change,))
        assert outcome is not None and outcome.saved_bytes > 0
        names: dict[str, object] = {"model": program().model}
        exec("\n".join(change.lines), names)
        assert names["optimizer"].param_groups[0]["lr"] == 1e-3  # type: ignore[attr-defined]
        # A workload that is to be rehearsed has none of the library's kernels.
        assert type(change.made_to(program()).optimizer) is AsLarge


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
