"""Free memory within what is reserved, at any moment."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.snapshots.test_findings import (
    BASE,
    MIB,
    explain,
)
from tests.snapshot.dumps import block, entry, freed, segment


def test_holes_end_at_segments_and_pass_over_mapped_ranges(tmp_path: Path) -> None:
    # Segment A of 4096 with 512 in the middle: holes 1024 and 2560. Segment B follows at once, wholly free: 2048.
    a, b = segment(BASE, 4096, [block(BASE + 1024, 500)]), segment(BASE + 4096, 2048, [])
    found = explain(tmp_path / "s", [], [a, b]).end_fragmentation
    assert (found.reserved_bytes, found.allocated_bytes, found.free_bytes) == (6144, 512, 5632)
    assert found.largest_free_bytes == 2560
    # An expandable segment of 4096 whose second half was mapped after the peak: before, the hole ends there.
    trace = [entry("alloc", BASE, 900), *freed(BASE, 900), entry("segment_map", BASE + 2048, 2048)]
    device = explain(tmp_path / "t", trace, [segment(BASE, 4096, [], expandable=True)])
    assert device.peak.fragmentation.largest_free_bytes == 1024
    assert device.end_fragmentation.largest_free_bytes == 4096


def test_a_segment_that_was_given_back_later_was_there_at_the_peak(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE, 900), *freed(BASE, 900), entry("segment_free", BASE + MIB, 8192)]
    device = explain(tmp_path / "s", trace, [segment(BASE, 2048, [])])
    at_peak, at_end = device.peak.fragmentation, device.end_fragmentation
    assert (at_peak.reserved_bytes, at_peak.free_bytes, at_peak.largest_free_bytes) == (10240, 9216, 8192)
    assert (at_end.reserved_bytes, at_end.free_bytes, at_end.largest_free_bytes) == (2048, 2048, 2048)
