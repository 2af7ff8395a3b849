"""Stacks of the peak's rows: those of most of their bytes, in the recording's own frames."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.histories import Event, recording_of
from tests.training_steps import WORKLOADS, Recorded
from tracer.analysis.profiles.findings import find_in_cycle
from tracer.exporters.python_stacks import PythonStacks, stacks_of_rows


def test_a_row_has_the_stack_of_most_of_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: blocks of 7 and 9 bytes share a stack, one of 11 has another, and one of 5 has none; all are one row."""
    recording = recording_of([Event(500, 7, 1), Event(600, 11, 2), Event(700, 9, 3), Event(800, 5, 4)])
    peak = find_in_cycle(recording).peak
    assert [row.count for row in peak.rows] == [4]
    shared = [{"name": "f", "filename": "a.py", "line": 3}, {"name": "main", "filename": "a.py", "line": 9}]
    alone = [{"name": "g", "filename": "b.py", "line": 1}]
    monkeypatch.setattr(PythonStacks, "of_allocation", lambda _, row: [shared, alone, shared, []][row])
    assert stacks_of_rows(recording, peak, num_rows=9, num_frames=9) == [["f (a.py:3)", "main (a.py:9)"]]
    assert stacks_of_rows(recording, peak, num_rows=9, num_frames=1) == [["f (a.py:3)"]]
    assert stacks_of_rows(recording, peak, num_rows=0, num_frames=9) == [None]


@pytest.mark.parametrize("name", WORKLOADS)
def test_on_every_workload_the_line_of_a_row_is_in_its_stack(name: str, recorded: Callable[[str], Recorded]) -> None:
    found = recorded(name).cycles[-1]
    stacks = stacks_of_rows(found.recording, found.peak, num_rows=1000, num_frames=1000)
    assert len(stacks) == len(found.peak.rows)
    made = [(row, stack) for row, stack in zip(found.peak.rows, stacks, strict=True) if stack is not None]
    assert made, "forward has stacks"
    for row, stack in made:
        if row.file is not None and row.phase == "forward":
            assert any(frame.endswith(f"({row.file}:{row.line})") for frame in stack), (row, stack)
        assert row.phase != "before recording"
