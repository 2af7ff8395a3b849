"""Batches that a loop keeps until it has the next one, in traces written by hand, and what only looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace import chrome
from tracer.analysis.kinds import Evidence
from tracer.analysis.profiles.findings import find_in_cycle
from tracer.trace.load import load_trace

BATCH_BYTES = 4096
UNTIL, KEPT = Evidence.UNTIL_NEXT_BATCH, Evidence.OUTSIDE


def step(number: int) -> list[chrome.Event]:
    """100 us: the loop makes a batch at 5, calls the model at 20 to 30, and backward runs at 40 to 60."""
    begin_us, sequence = 100 * number, number + 1
    return [
        chrome.region(f"ProfilerStep#{number}", begin_us, 100),
        chrome.operator("aten::stack", begin_us + 4, 3, Input_Dims=[[32, 32]]),
        chrome.call("nn.Module: Net_0", begin_us + 20, 10, 10 * number + 1),
        chrome.operator("aten::mm", begin_us + 22, 5, Sequence_number=sequence, Input_Dims=[[32, 32]]),
        chrome.call("torch/autograd/__init__.py(255): backward", begin_us + 40, 20, 10 * number + 2),
        chrome.operator("MmBackward0", begin_us + 45, 10, thread=2, Sequence_number=sequence),
    ]


def evidence(tmp_path: Path, blocks: list[tuple[float, float | None]], *, num_steps: int = 3) -> list[Evidence]:
    """Of blocks of a batch's size, by when each is made and freed."""
    events = [event for number in range(num_steps) for event in step(number)]
    changes = [(made, row, BATCH_BYTES) for row, (made, _) in enumerate(blocks)]
    changes += [(freed, row, -BATCH_BYTES) for row, (_, freed) in enumerate(blocks) if freed is not None]
    total = 0
    for time_us, row, size_bytes in sorted(changes):
        total += size_bytes
        events.append(chrome.memory(time_us, 0x1000 * (row + 1), size_bytes, total))
    cycle = find_in_cycle(load_trace(chrome.write(tmp_path / "trace.json", events)).recording)
    by_address = sorted(
        zip(cycle.blocks.address.tolist(), cycle.blocks.evidence.tolist(), strict=True)
    )  # as they were asked for
    return [Evidence(found) for _, found in by_address]


def test_a_batch_is_there_until_the_next_one(tmp_path: Path) -> None:
    assert evidence(tmp_path, [(5, 108), (105, 208), (205, None)]) == [UNTIL, UNTIL, UNTIL]


@pytest.mark.parametrize(
    ("made_us", "freed_us"),
    [
        (5, 125),  # after the model was called again
        (5, 208),  # two steps later
        (65, 108),  # made behind backward
        (65, 170),  # a running mean
        (5, None),  # never
    ],
)
def test_what_is_kept_otherwise_is_no_batch(tmp_path: Path, made_us: float, freed_us: float | None) -> None:
    assert evidence(tmp_path, [(made_us, freed_us)]) == [KEPT]


def test_the_last_batch_is_told_by_those_before_it(tmp_path: Path) -> None:
    assert evidence(tmp_path, [(205, None)]) == [KEPT]
    assert evidence(tmp_path, [(5, 108), (265, None)]) == [UNTIL, KEPT]  # made behind backward
    assert evidence(tmp_path, [(5, 108), (105, None)]) == [UNTIL, KEPT]  # a model was called again


def test_what_is_freed_in_its_own_step_was_around_backward(tmp_path: Path) -> None:
    assert evidence(tmp_path, [(5, 70)]) == [Evidence.AROUND_BACKWARD]
