"""A run that takes little of its device says so, and what of its peak a larger batch leaves as it is."""

from __future__ import annotations

import dataclasses

import pytest

from tests.allocator.recorded import MIB
from tests.analysis.snapshots.allocator_samples import fragmented
from tests.exporters.recording_file.samples import on_cpu
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.caveats import room_sentences
from tracer.analysis.profiles.peak import PeakReport
from tracer.analysis.snapshots.findings import replay_snapshot
from tracer.analysis.snapshots.first_changes import first_changes
from tracer.snapshot.load import snapshot_in_memory


def peak(**sizes: int) -> PeakReport:
    findings = on_cpu().findings
    assert findings is not None
    rows = tuple(
        PeakRow(size * MIB, 1, kind, None, "", "", None, "aten::mm", "train.py", 1) for kind, size in sizes.items()
    )
    size = sum(row.bytes for row in rows)
    report = findings.worst.peak
    return dataclasses.replace(report, rows=rows, peak_bytes=size, allocator_peak_bytes=size, reserved_bytes=size)


@pytest.mark.parametrize(
    ("device_mib", "words"),
    [
        (None, ()),
        (3000, ()),
        (
            3200,
            (
                "The run takes 9.4 % of the GPU's 3.12 GiB. Parameters, buffers and optimizer state, 200.00 MiB of the "
                "peak, stay the same with a larger batch. To see how the rest grows, run it with another batch and "
                "compare the two by `diff`.",
            ),
        ),
    ],
)
def test_a_share_below_a_tenth_is_said_with_what_any_batch_needs(
    device_mib: int | None, words: tuple[str, ...]
) -> None:
    size = None if device_mib is None else device_mib * MIB
    assert room_sentences(peak(PARAMETER=150, OPTIMIZER_STATE=50, ACTIVATION=100), size) == words


def test_nothing_is_said_of_a_batch_where_all_may_grow_with_it() -> None:
    assert room_sentences(peak(ACTIVATION=100), 100 << 30) == ("The run takes 0.1 % of the GPU's 100.00 GiB.",)


def causes(device_bytes: int | None) -> list[str]:
    replayed = replay_snapshot(snapshot_in_memory(fragmented().snapshot()))
    (device,) = replayed.devices
    found = first_changes(device, device_bytes=device_bytes)
    assert found is not None
    return [change.cause for change in found.changes]


def test_settings_of_the_allocator_are_no_advice_on_a_device_that_is_mostly_free() -> None:
    assert "fragmentation" in causes(None) and "fragmentation" in causes(1 << 30)
    assert "fragmentation" not in causes(80 << 30)
