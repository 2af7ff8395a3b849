"""A snapshot in the words of the memory report: by hand."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.snapshots.test_findings import BASE, MIB, load
from tests.exporters.snapshot_samples import out_of_memory
from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot
from tracer.analysis.snapshots.memory_report import snapshot_report
from tracer.analysis.snapshots.timeline import device_timeline


def test_weights_activations_and_levels(tmp_path: Path) -> None:
    replayed = replay_snapshot(load(tmp_path / "s", out_of_memory()))
    (one,) = replayed.devices
    timeline = device_timeline(one)
    report = snapshot_report(replayed, explain_replayed(replayed), 0, timeline, settings={"a": 1})
    assert [(entry.bytes, entry.count, entry.frames[0]) for entry in report.weights] == [
        (2 * MIB, 1, ("/home/me/model.py", 3))
    ]
    # 1 and 2 MiB of one stack are one entry.
    assert [(entry.name, entry.bytes, entry.count) for entry in report.activations] == [("mul_Tensor", 3 * MIB, 2)]
    assert report.levels.requested_bytes.max() == report.device.peak.requested_bytes == 5 * MIB
    assert report.levels.entry[0] == -1 and report.levels.time_us[0] == 10
    assert report.settings == {"a": 1} and BASE
