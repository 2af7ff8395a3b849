"""How often counters are read: always when a step ends, and seldom within one."""

from __future__ import annotations

import pytest
import torch

from tracer.capture.device import memory_counters
from tracer.capture.device.allocator_history import snapshot_without_times
from tracer.capture.device.memory_counters import Counters, StepReader
from tracer.snapshot.load import snapshot_in_memory


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the looks so far; what is in use is that number."""
    seen: list[int] = []

    def read(device: torch.device) -> Counters:
        seen.append(len(seen) + 1)
        return Counters(len(seen), 1000, 2000, 0, 10 * len(seen), 0)

    monkeypatch.setattr(memory_counters, "read_counters", read)
    monkeypatch.setattr(memory_counters, "device_memory", lambda device: None)
    return seen


def looks_of(reader: StepReader, looks: list[int], *, calls: int = 1, name: str = "forward_bytes") -> int:
    """Looks within a step and at its end."""
    before = len(looks)
    for _ in range(calls):
        reader.note(name, always=name == "evaluation_bytes")
    row = reader.end_of_step(1, 0)
    assert row["end_bytes"] == looks[-1]
    assert (row[name] == looks[-1] - 1) if name in row else len(looks) == before + 1
    return len(looks) - before


def test_the_first_steps_are_looked_at_and_then_one_of_eight(looks: list[int]) -> None:
    reader = StepReader(torch.device("cuda:0"))
    assert [looks_of(reader, looks) for _ in range(32)] == [2] * 32
    assert [looks_of(reader, looks) for _ in range(17)] == [2, *[1] * 7, 2, *[1] * 7, 2]


def test_of_many_calls_in_a_step_the_first_and_one_in_sixteen_are_looked_at(looks: list[int]) -> None:
    reader = StepReader(torch.device("cuda:0"))
    assert looks_of(reader, looks, calls=48) == 4 + 3 + 1
    assert looks_of(reader, looks, calls=2) == 3


def test_an_evaluation_is_looked_at_in_every_step(looks: list[int]) -> None:
    reader = StepReader(torch.device("cuda:0"))
    for _ in range(33):
        looks_of(reader, looks)
    assert looks_of(reader, looks, calls=20, name="evaluation_bytes") == 4 + 1 + 1


# ---------------------------------------------------------------------------------------------------- allocator history
def test_entries_keep_their_order_and_lose_their_times() -> None:
    entry = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 7, "frames": []}
    snapshot = {
        "segments": [],
        "device_traces": [[entry, {**entry, "action": "free_completed", "time_us": 9}], []],
        "external_annotations": [{"name": "step", "stage": "START", "time_us": 8}],
    }
    changed = snapshot_without_times(snapshot)
    assert [one["action"] for one in changed["device_traces"][0]] == ["alloc", "free_completed"]
    assert "time_us" not in str(changed) and entry["time_us"] == 7 and "time_us" in str(snapshot)
    assert snapshot_in_memory(changed).devices[0].trace.time_us.tolist() == [-1, -1]
