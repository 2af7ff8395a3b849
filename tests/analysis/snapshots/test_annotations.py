"""Named regions of the program, joined with entries by time."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.snapshots.test_findings import (
    BASE,
    explain,
)
from tests.snapshot.dumps import block, entry, segment


def test_regions_may_nest_tie_overlap_and_miss_their_end(tmp_path: Path) -> None:
    # outer 10..50, inner 20..30, an END without START at 35, late 40.. without END
    marks = [("outer", "START", 10), ("inner", "START", 20), ("inner", "END", 30), ("lost", "END", 35)]
    marks += [("late", "START", 40), ("outer", "END", 50)]
    notes = [{"name": n, "stage": s, "device": 0, "time_us": t} for n, s, t in marks]
    times = {5: "no annotation", 10: "outer", 25: "inner", 30: "outer", 36: "outer", 45: "late", 60: "late"}
    trace = [entry("alloc", BASE + 512 * i, 1 << i, time_us=t) for i, t in enumerate(times)]
    blocks = [block(BASE + 512 * i, 1 << i) for i in range(len(times))]
    device = explain(tmp_path / "s", trace, [segment(BASE, 8192, blocks)], external_annotations=notes)
    expected: dict[str, int] = {}
    for i, name in enumerate(times.values()):
        expected[name] = expected.get(name, 0) + (1 << i)
    assert {share.name: share.bytes for share in device.peak.by_annotation} == expected
