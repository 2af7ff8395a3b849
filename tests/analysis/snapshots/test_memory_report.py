"""A snapshot in the words of the memory report: by hand."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.snapshots.test_findings import MIB, load
from tests.exporters.snapshot_samples import out_of_memory
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.memory_report import activations_at_peak, drawn_levels, weights_at_peak
from tracer.analysis.snapshots.timeline import device_timeline


def test_weights_activations_and_levels(tmp_path: Path) -> None:
    (one,) = replay_snapshot(load(tmp_path / "s", out_of_memory())).devices
    assert [(entry.bytes, entry.count, entry.frames[0]) for entry in weights_at_peak(one)] == [
        (2 * MIB, 1, ("/home/me/model.py", 3))
    ]
    # 1 and 2 MiB of one stack are one entry.
    activations = activations_at_peak(one)
    assert [(entry.name, entry.bytes, entry.count) for entry in activations] == [("mul_Tensor", 3 * MIB, 2)]
    entry, time_us, requested_bytes, *_ = drawn_levels(one, device_timeline(one))
    assert requested_bytes.max() == 5 * MIB
    assert entry[0] == -1 and time_us[0] == 10
