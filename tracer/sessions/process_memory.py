"""The peak of a device over the life of a process, explained from the allocator's history."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tracer.analysis.peak_diff import SavedPeak
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.snapshots.findings import explain_replayed, replay_snapshot
from tracer.analysis.snapshots.groups import SnapshotRow
from tracer.capture.device.allocator_history import AllocatorHistory
from tracer.results.null_run import caveat_of
from tracer.snapshot.load import snapshot_in_memory

ROUNDING = "rounding"


@dataclass(frozen=True, slots=True)
class ProcessPeak:
    """The most that was in use."""

    peak: SavedPeak  # With rows that sum to it, as the allocator counted it
    reserved_bytes: int  # Reserved from the driver at most
    caveat: str  # What has to be said of it before anything else; empty on a GPU


class ProcessMemory:
    """Records what all GPUs that a process sees allocate, from now on."""

    def __init__(self) -> None:
        """Begin to record."""
        torch.cuda.init()  # type: ignore[no-untyped-call]
        devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        self._histories = [
            AllocatorHistory(device, stacks_of_frees=False, is_timed=not caveat_of(device)) for device in devices
        ]
        for history in self._histories:
            torch.cuda.reset_peak_memory_stats(history.device)
            history.start()

    def stop(self) -> None:
        """Record no longer."""
        for history in self._histories:
            history.stop()

    def worst(self) -> ProcessPeak:
        """The device that had most in use, explained."""
        peaks = [(_counted("allocated", history.device), history) for history in self._histories]
        size_bytes, history = max(peaks, key=lambda peak: peak[0])
        history.dump()
        peak = SavedPeak(str(history.device), size_bytes, None, _rows(history, size_bytes))
        return ProcessPeak(peak, _counted("reserved", history.device), caveat_of(history.device))


def _counted(counter: str, device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get(f"{counter}_bytes.all.peak", 0))


def _rows(history: AllocatorHistory, size_bytes: int) -> tuple[PeakRow, ...]:
    """Rows by kind and line, and what the allocator has rounded up, which sum to the peak."""
    groups: tuple[SnapshotRow, ...] = ()
    if history.snapshot is not None and size_bytes:
        columns = snapshot_in_memory(dict(history.snapshot))
        if any(state.device == history.device.index for state in columns.devices):
            finding = explain_replayed(replay_snapshot(columns, device=history.device.index))
            groups = finding.devices[0].peak.groups
    rows = [_row(group) for group in groups]
    rest = size_bytes - sum(row.bytes for row in rows)
    return (*rows, PeakRow(rest, 1, ROUNDING, None, "", "", None, None, None, None)) if rest else tuple(rows)


def _row(group: SnapshotRow) -> PeakRow:
    site = group.site
    return PeakRow(
        group.bytes, group.count, group.kind.words, None, group.evidence, "", None, site.frame, site.file, site.line
    )
