"""A snapshot without times keeps its order and all else, and the one it was made of keeps its times."""

from __future__ import annotations

from tracer.capture.device.allocator_history import snapshot_without_times
from tracer.snapshot.load import snapshot_in_memory


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
