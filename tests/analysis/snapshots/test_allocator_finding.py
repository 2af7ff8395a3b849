"""Everything that the model says of a snapshot, together."""

from __future__ import annotations

import json

from tests.allocator.recorded import GIB
from tests.analysis.snapshots.allocator_samples import fragmented
from tracer.analysis.snapshots.allocator_finding import NO_HISTORY, explain_allocator
from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot
from tracer.exporters.json_documents.snapshot import snapshot_json
from tracer.snapshot.load import snapshot_in_memory


def test_json_has_all_of_it() -> None:
    objects = fragmented().snapshot()
    replayed = replay_snapshot(snapshot_in_memory(objects))
    found = explain_allocator(replayed, settings=("expandable_segments:True",), gpu_memory=GIB)
    (device,) = json.loads(snapshot_json(explain_replayed(replayed), file="s", allocator=found))["devices"]
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
