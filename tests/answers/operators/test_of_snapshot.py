"""A snapshot in the words of the memory report: by hand."""

from __future__ import annotations

from pathlib import Path

from tests.answers.test_snapshot_findings import MIB, load
from tests.exporters.snapshot_samples import out_of_memory
from tracer.answers.operators.of_snapshot import activations_at_peak, weights_at_peak
from tracer.answers.snapshot_findings import replay_snapshot


def test_weights_and_activations(tmp_path: Path) -> None:
    (one,) = replay_snapshot(load(tmp_path / "s", out_of_memory())).devices
    assert [(entry.bytes, entry.frames[0]) for entry in weights_at_peak(one)] == [(2 * MIB, ("/home/me/model.py", 3))]
    # 1 and 2 MiB of one stack are one entry.
    assert [(entry.name, entry.bytes) for entry in activations_at_peak(one)] == [("mul_Tensor", 3 * MIB)]
