"""Everything that the model says of a snapshot, together."""

from __future__ import annotations

import json

from tests.allocator.recorded import GIB
from tests.analysis.snapshots.allocator_samples import fragmented
from tests.analysis.snapshots.recorded_program import Recorded, layer, line, train
from tracer.analysis.snapshots.allocator_finding import NO_HISTORY, Explanation, explain_allocator, explanation_of
from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot
from tracer.exporters.json_documents.snapshot import snapshot_json
from tracer.snapshot.load import snapshot_in_memory


def test_json_has_all_of_it() -> None:
    objects = fragmented().snapshot()
    replayed = replay_snapshot(snapshot_in_memory(objects))
    found = explain_allocator(replayed, settings=("expandable_segments:True",), gpu_memory=GIB)
    (device,) = json.loads(json.dumps(snapshot_json(explain_replayed(replayed), file="s", allocator=found)))["devices"]
    allocator = device["allocator"]
    assert allocator["reproduced"]["is_exact"] is True
    assert allocator["reproduced"]["addresses"] == {"equal": 40, "recorded": 40}
    peak = allocator["reserved_at_peak"]
    assert sum(row["bytes"] for row in peak["rows"]) == peak["reserved_bytes"]
    assert peak["held_free_by"][0]["sites"][0]["frame"]
    rows = allocator["what_if"]["rows"]
    assert [row["settings"] for row in rows] == ["", "expandable_segments:True"]
    assert rows[1]["on_gpu"]["failure"] is None and rows[1]["smallest_gpu_bytes"] <= GIB


def test_without_a_history_what_is_asked_of_settings_is_said_to_have_no_answer() -> None:
    objects = {**fragmented().snapshot(), "device_traces": []}
    replayed = replay_snapshot(snapshot_in_memory(objects))
    (asked,) = explain_allocator(replayed, settings=("expandable_segments:True",))
    assert (asked.agreement, asked.what_if) == ((NO_HISTORY,), None)
    (unasked,) = explain_allocator(replayed)
    assert unasked.agreement == ()


def explained(capacity: int | None = None, *, fails: bool = False) -> Explanation:
    """Of 4 blocks that a metric's forward keeps in each of 8 steps."""
    program = Recorded(capacity=capacity)
    for _ in range(8):
        train(program)
        for _ in range(4):
            program.make(10, layer(8, caller=4))
    if fails:
        program.fail(110, [line(2)])
    found = explanation_of(snapshot_in_memory(program.snapshot()))
    assert found is not None
    return found


def test_a_failure_is_explained_with_its_line() -> None:
    found = explained(420, fails=True)
    assert (found.file, found.line, found.cause) == ("/home/me/train.py", 2, "graphs kept")
    assert found.sentences.startswith("Memory grows: each of 6 steps left 40.00 MiB")


def test_growth_is_explained_without_a_failure() -> None:
    found = explained()
    assert (found.file, found.cause) == ("", "graphs kept")
    assert "loss.item()" in found.sentences


def test_where_the_allocator_is_to_blame_it_says_why() -> None:
    program = Recorded(capacity=100)
    scratch = program.make(60, [line(1)])
    program.free(scratch, [line(1)])
    program.make(15, [line(2)])  # in the 60 MiB, of which 45 stay free; so do 40 MiB of the device
    program.fail(50, [line(3)])
    found = explanation_of(snapshot_in_memory(program.snapshot()))
    assert found is not None and found.cause == "fragmentation"
    assert found.sentences.startswith("This request would have fit if the free memory were in one piece")


def test_of_an_empty_recording_there_is_nothing_to_say() -> None:
    assert explanation_of(snapshot_in_memory({"segments": [], "device_traces": []})) is None
