"""What backward left for the optimizer, in traces written by hand: gradients, and what only looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace import chrome
from tracer.analysis.kinds import Evidence, Kind
from tracer.analysis.profiles.findings import find_in_cycle
from tracer.trace.load import load_trace

ZERO_GRAD, STEP = "Optimizer.zero_grad#SGD.zero_grad", "Optimizer.step#SGD.step"
GRADIENT, DETAIL = "GRADIENT", "AUTOGRAD_DETAIL"


def node(name: str, start_us: float, duration_us: float, number: int) -> list[chrome.Event]:
    """A node of autograd's, as the engine's thread has it."""
    return [
        chrome.operator(f"autograd::engine::evaluate_function: {name}", start_us, duration_us, thread=2,
                        Sequence_number=number),
        chrome.operator(name, start_us + 0.1, duration_us - 0.2, thread=2, Sequence_number=number),
    ]  # fmt: skip


def accumulates(start_us: float, shape: list[int], *, adds: bool = False) -> list[chrome.Event]:
    name = "torch::autograd::AccumulateGrad"
    inner = [chrome.operator("aten::add_", start_us + 0.2, 0.3, thread=2)] if adds else []
    return [
        chrome.operator(f"autograd::engine::evaluate_function: {name}", start_us, 1, thread=2),
        chrome.operator(name, start_us + 0.1, 0.8, thread=2, Input_Dims=[shape]),
        *inner,
    ]


def kinds(
    tmp_path: Path, events: list[chrome.Event], *, made: int = 1, freed_us: float | None = None, records: bool = False
) -> list[tuple[str, Evidence]]:
    """Of blocks of 4,096 bytes that MmBackward0 makes at 50 us."""
    numbered = {"Sequence_number": 7} if records else {}
    blocks = []
    for number in range(made):
        blocks.append(chrome.memory(50 + number, 0x1000 * (number + 1), 4096, 4096 * (number + 1), thread=2))
        if freed_us is not None:
            left = 4096 * (made - number - 1)
            blocks.append(chrome.memory(freed_us + number / 10, 0x1000 * (number + 1), -4096, left))
    step = [
        chrome.region("ProfilerStep#0", 0, 200),
        chrome.operator("aten::mm", 5, 10, Sequence_number=3, Input_Dims=[[32, 32]]),
        chrome.call("torch/autograd/__init__.py(255): backward", 40, 40, 1),
        *node("MmBackward0", 45, 20, 3),
        chrome.operator("aten::mm", 47, 15, thread=2, **numbered),
    ]
    cycle = find_in_cycle(load_trace(chrome.write(tmp_path / "trace.json", [*step, *events, *blocks])).recording)
    rows = zip(cycle.blocks.kind.tolist(), cycle.blocks.evidence.tolist(), strict=True)
    return [(Kind(kind).name, Evidence(evidence)) for kind, evidence in rows]


def test_what_zero_grad_lets_go_of_is_a_gradient(tmp_path: Path) -> None:
    region = chrome.region(ZERO_GRAD, 100, 10)
    assert kinds(tmp_path, [region], freed_us=105) == [(GRADIENT, Evidence.FREED_BY_ZERO_GRAD)]
    assert kinds(tmp_path, [region], freed_us=115) == [(DETAIL, Evidence.MADE_IN_BACKWARD)]


def test_a_graph_that_a_gradient_keeps_is_none(tmp_path: Path) -> None:
    """`create_graph=True`: zero_grad lets go of what the gradient's own graph keeps, too."""
    found = kinds(tmp_path, [chrome.region(ZERO_GRAD, 100, 10)], freed_us=105, records=True)
    assert found == [(DETAIL, Evidence.MADE_IN_BACKWARD)]


@pytest.mark.parametrize("freed_us", [None, 125])
def test_what_accumulate_grad_took_and_a_step_finds_is_a_gradient(tmp_path: Path, freed_us: float | None) -> None:
    events = [*accumulates(66, [32, 32]), chrome.region(STEP, 100, 20)]
    assert kinds(tmp_path, events, freed_us=freed_us) == [(GRADIENT, Evidence.BACKWARD_TO_STEP)]


@pytest.mark.parametrize(
    ("events", "freed_us"),
    [
        ([*accumulates(66, [32, 33]), chrome.region(STEP, 100, 20)], None),
        ([chrome.region(STEP, 100, 20)], None),
        (accumulates(66, [32, 32]), None),
        ([*accumulates(66, [32, 32]), chrome.region(STEP, 100, 20)], 90),
        ([*accumulates(66, [32, 32]), chrome.region(STEP, 20, 10)], None),
        # It was added to the one that is there: what stays is another's.
        ([*accumulates(66, [32, 32], adds=True), chrome.region(STEP, 100, 20)], None),
        # AccumulateGrad took it in another backward.
        ([*accumulates(90, [32, 32]), chrome.region(STEP, 100, 20)], None),
    ],
)
def test_what_lacks_some_of_that_is_no_gradient(
    tmp_path: Path, events: list[chrome.Event], freed_us: float | None
) -> None:
    assert kinds(tmp_path, events, freed_us=freed_us) == [(DETAIL, Evidence.MADE_IN_BACKWARD)]


def test_of_more_blocks_than_accumulate_grad_took_none_is_called_a_gradient(tmp_path: Path) -> None:
    """One of them is what `retain_grad` keeps, and nothing says which."""
    one, two = accumulates(66, [32, 32]), accumulates(68, [32, 32])
    step = chrome.region(STEP, 100, 20)
    assert {kind for kind, _ in kinds(tmp_path, [*one, step], made=2)} == {DETAIL}
    assert {kind for kind, _ in kinds(tmp_path, [*one, *two, step], made=2)} == {GRADIENT}
