"""Blocks gathered by line and kind."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.snapshots.test_findings import BASE, FORWARD, TORCH, explain
from tests.snapshot.dumps import block, entry, segment


def test_groups_keep_what_was_there_before_apart(tmp_path: Path) -> None:
    # 300 B without a stack and 200 B with one were there; 100 B come.
    blocks = [block(BASE, 300), block(BASE + 512, 200, frames=FORWARD), block(BASE + 1024, 100)]
    trace = [entry("alloc", BASE + 1024, 100, frames=FORWARD)]
    device = explain(tmp_path / "s", trace, [segment(BASE, 2048, blocks)])
    shown = [(g.bytes, g.site.frame, g.is_before_recording) for g in device.peak.groups]
    assert shown == [(300, "before recording", True), (200, "forward", True), (100, "forward", False)]
    assert device.peak.before_recording_bytes == 500
    assert device.peak.groups[1].stack == (
        "at::_ops::mul_Tensor::call(at::Tensor const&, at::Tensor const&)",
        f"linear ({TORCH}/nn/functional.py:20)",
        "einsum (/usr/lib/python3.11/site-packages/einops/einops.py:20)",
        "forward (/home/me/model.py:7)",
        "main (/home/me/train.py:70)",
    )
    assert [(g.bytes, g.site.frame) for g in device.never_freed] == [(100, "forward")]
