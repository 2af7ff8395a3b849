"""Kernels that name no operator: whose they are is read off the driver's call, and never guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.trace import chrome
from tracer.analysis.times.step_times import launching_operators
from tracer.trace.load import load_trace


def launchers(tmp_path: Path, events: list[chrome.Event]) -> list[str | None]:
    """Of each kernel in order, the operator that launched it."""
    trace = load_trace(chrome.write(tmp_path / "trace.json", events))
    ops, names = trace.recording.ops, trace.recording.strings
    rows = launching_operators(trace.recording, trace.work).tolist()
    return [names[ops.name[row]] if row >= 0 else None for row in rows]


def test_a_kernel_without_an_operators_number_is_of_the_operator_around_its_call(tmp_path: Path) -> None:
    # As those of a CUDA graph: the third call is made outside of all operators.
    events = [
        chrome.operator("aten::mul", 0, 10, External_id=5),
        chrome.operator("aten::mm", 20, 10, External_id=6),
        chrome.launch("cudaGraphLaunch", 2, 4, correlation=101),
        chrome.launch("cudaLaunchKernel", 22, 4, correlation=102),
        chrome.launch("cudaLaunchKernel", 40, 4, correlation=103),
        chrome.kernel("a", 50, 1, correlation=101),
        chrome.kernel("b", 52, 1, correlation=102, launched_by=6),
        chrome.kernel("c", 54, 1, correlation=103),
    ]
    assert launchers(tmp_path, events) == ["aten::mul", "aten::mm", None]


def test_numbers_of_calls_are_not_taken_for_operators(tmp_path: Path) -> None:
    """Kineto's of 2022: `External id` is the call's number, which is here that of an operator that launched nothing."""
    events = [
        chrome.operator("aten::mul", 0, 10, External_id=5),
        chrome.operator("aten::empty", 20, 10, External_id=101),
        chrome.launch("cudaLaunchKernel", 2, 4, correlation=101),
        chrome.kernel("a", 50, 1, correlation=101, launched_by=101),
    ]
    assert launchers(tmp_path, events) == ["aten::mul"]
    # In a file where one of them differs, they are operators' numbers.
    events.append(chrome.kernel("b", 60, 1, correlation=7, launched_by=5))
    assert launchers(tmp_path, events) == ["aten::empty", "aten::mul"]


def test_a_call_between_two_operators_is_of_neither(tmp_path: Path) -> None:
    """In whole microseconds a call may end where the next operator begins."""
    events = [
        chrome.operator("aten::mul", 0, 10, External_id=5),
        chrome.operator("aten::mm", 10, 10, External_id=6),
        chrome.launch("cudaLaunchKernel", 8, 2, correlation=101),
        chrome.kernel("a", 50, 1, correlation=101),
    ]
    assert launchers(tmp_path, events) == [None]


def test_operators_numbers_and_calls_agree(tmp_path: Path) -> None:
    """A training step's kernels by their numbers, and the same without them."""
    rng = np.random.default_rng(0)
    events, kernels = [], []
    for number in range(1, 60):
        start = 30 * number
        thread = int(rng.integers(1, 3))
        events.append(chrome.operator(f"aten::op{number}", start, 25, External_id=number, thread=thread))
        events.append(chrome.launch("launch", start + int(rng.integers(1, 10)), 5, correlation=500 + number,
                                    thread=thread))  # fmt: skip
        kernels.append((start + 40, 500 + number, number))
    by_number = [chrome.kernel("k", start, 1, correlation=call, launched_by=op) for start, call, op in kernels]
    by_call = [chrome.kernel("k", start, 1, correlation=call) for start, call, _ in kernels]
    found = launchers(tmp_path, [*events, *by_number])
    assert found == launchers(tmp_path, [*events, *by_call]) and None not in found
