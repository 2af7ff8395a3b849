"""Free memory within what is reserved, at any moment."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.analysis.snapshots.test_findings import (
    BASE,
    MIB,
    explain,
    load,
)
from tests.snapshot.dumps import REAL_FILES, block, entry, freed, segment, snapshot
from tracer.analysis.snapshots.fragmentation import AddressRanges, address_ranges
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.replay import replay


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


def ranges_of(loaded: Snapshot) -> AddressRanges:
    (state,) = loaded.devices
    return address_ranges(state)


def rows(found: AddressRanges) -> list[tuple[int, int, int, int]]:
    columns = (found.address - BASE, found.size_bytes, found.begin, found.end)
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in zip(*columns, strict=True)]


def test_by_hand(tmp_path: Path) -> None:
    trace = [
        entry("segment_alloc", BASE, 4 * MIB),
        entry("segment_free", BASE + 64 * MIB, 2 * MIB),
        entry("segment_free", BASE, 4 * MIB),
        entry("segment_alloc", BASE, 8 * MIB),
    ]
    loaded = load(
        tmp_path / "s",
        snapshot(
            trace,
            [
                segment(BASE, 8 * MIB, []),
                segment(BASE + 32 * MIB, 2 * MIB, []),
            ],
        ),
    )
    assert rows(ranges_of(loaded)) == [
        (0, 4 * MIB, 0, 2),
        (0, 8 * MIB, 3, 4),
        (32 * MIB, 2 * MIB, -1, 4),
        (64 * MIB, 2 * MIB, -1, 1),
    ]


def test_pages_of_an_expandable_segment_come_and_go_one_by_one(tmp_path: Path) -> None:
    trace = [
        entry("segment_map", BASE + 4 * MIB, 4 * MIB),
        # Of the two pages that were mapped together one goes, with one that was there before.
        entry("segment_unmap", BASE + 2 * MIB, 4 * MIB),
    ]
    left = segment(
        BASE + 6 * MIB,
        2 * MIB,
        [block(BASE + 6 * MIB, MIB)],
        expandable=True,
    )
    loaded = load(tmp_path / "s", snapshot(trace, [left]))
    assert rows(ranges_of(loaded)) == [
        (2 * MIB, 2 * MIB, -1, 1),
        (4 * MIB, 2 * MIB, 0, 1),
        (6 * MIB, 2 * MIB, 0, 2),
    ]


@pytest.mark.skipif(not REAL_FILES, reason="the real recordings are not here")
@pytest.mark.parametrize("path", REAL_FILES, ids=lambda path: path.stem)
def test_at_every_entry_the_ranges_sum_to_what_is_reserved(path: Path) -> None:
    loaded = load_snapshot(path, isolated=False)
    for state in loaded.devices:
        found, reserved = address_ranges(state), replay(state, loaded.settings).reserved_bytes
        level = np.zeros(len(reserved) + 1, np.int64)
        np.add.at(level, found.begin + 1, found.size_bytes)
        np.add.at(level, found.end + 1, -found.size_bytes)
        assert (np.cumsum(level)[: len(reserved)] == reserved).all()
        # No two of them overlap at any moment.
        for moment in (-1, len(state.trace) // 2, len(state.trace) - 1):
            there = np.flatnonzero((found.begin <= moment) & (found.end > moment))
            assert (found.address[there][1:] >= (found.address + found.size_bytes)[there][:-1]).all()
