"""How far the model agrees with a recording, in sentences."""

from __future__ import annotations

from typing import Any

import pytest

from tests.allocator.recorded import MIB, Program
from tests.analysis.snapshots.allocator_samples import by_reason, explain, screen
from tests.snapshot.dumps import block, entry, freed, segment, snapshot
from tracer.allocator.reproduce import reproduce
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.modelled import model_device
from tracer.analysis.snapshots.reserved import ASKED, HELD
from tracer.snapshot.load import snapshot_in_memory


@pytest.mark.parametrize("version", [(2, 12), (2, 15)])
def test_the_rules_of_either_torch_are_found(version: tuple[int, int]) -> None:
    found = explain(Program(2, torch_version=version).run(2000).snapshot())
    assert found.modelled is not None and found.modelled.reproduction.is_exact
    assert found.modelled.torch_version == version
    assert "repeats every decision" in found.agreement[0]


def test_a_device_is_replayed_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """`what to try first` asks, and so does the explanation of a failure."""
    calls: list[object] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments[0])
        return reproduce(*arguments, **options)

    monkeypatch.setattr("tracer.analysis.snapshots.modelled.reproduce", counted)
    (device,) = replay_snapshot(snapshot_in_memory(Program(2, torch_version=(2, 12)).run(400).snapshot())).devices
    first = model_device(device)
    assert first is not None and model_device(device) is first
    assert len(calls) == 1


def test_retries_are_told() -> None:
    found = explain(Program(5, capacity=600 * MIB, empties=0.0).run(1500).snapshot())
    assert found.modelled is not None
    assert f"{found.modelled.reproduction.num_retries} times; each waits for the GPU." in found.agreement[1]


def test_what_does_not_come_out_is_named() -> None:
    objects = Program(1).run(600).snapshot()
    rows = objects["device_traces"][0]
    at = next(i for i, row in enumerate(rows) if i > 200 and row["action"] == "alloc")
    rows.insert(at, entry("a word of torch 9", 0, 0))
    rows[at + 1]["addr"] += 512 * 3
    said = " ".join(explain(objects).agreement)
    assert "repeats this recording in part: " in said
    assert "The first decision that differs is at entry" in said
    assert "1 entry has an action that this version does not know" in said


def test_another_allocators_recording_still_has_answers() -> None:
    rows = []
    for number in range(3000):
        rows += [entry("alloc", 512 * (number * 7919 % 100_003), 512), *freed(512 * (number * 7919 % 100_003), 512)]
    found = explain(snapshot(rows), settings=("expandable_segments:True",))
    assert "another allocator" in found.agreement[0]
    assert found.at_peak is None
    assert found.what_if is not None
    assert found.what_if.rows[0].outcome.reserved_peak_bytes == 2 * MIB
    assert "Reserved peak of the same requests" in screen(found)


def test_without_a_history_the_end_is_explained() -> None:
    objects = snapshot([], [segment(1 << 30, 20 * MIB, [block(1 << 30, 3 * MIB)])])
    objects["segments"][0]["blocks"].append({"size": 17 * MIB, "state": "inactive", "address": (1 << 30) + 3 * MIB})
    found = explain(objects, settings=("expandable_segments:True",))
    assert (found.modelled, found.what_if) == (None, None)
    (said,) = found.agreement
    assert "no history to be replayed" in said
    assert by_reason(found.at_end) == {ASKED: 3 * MIB, HELD: 17 * MIB}
