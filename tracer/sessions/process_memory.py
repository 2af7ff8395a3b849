"""The peak of a device over the life of a process, explained from the allocator's history."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from tracer.answers.difference import SavedPeak
from tracer.answers.rows import Row
from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
from tracer.blocks.from_recording.block_facts import KIND_OF_ROLE
from tracer.capture.device.allocator_history import AllocatorHistory
from tracer.capture.device.memory_counters import read_counters
from tracer.capture.objects.seen_in_training import SeenInTraining, SeenTensor, allocations_of
from tracer.sessions.on_null_gpu import allocator_history, origin_of
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
        self._histories = [allocator_history(device, stacks_of_frees=False) for device in devices]
        for history in self._histories:
            torch.cuda.reset_peak_memory_stats(history.device)
            history.start()
        self._training = SeenInTraining("cuda")

    def stop(self) -> None:
        """Record no longer."""
        self._training.stop()
        for history in self._histories:
            history.stop()

    def worst(self) -> ProcessPeak:
        """The device that had most in use, explained."""
        peaks = [(_counted("allocated", history.device), history) for history in self._histories]
        size_bytes, history = max(peaks, key=lambda peak: peak[0])
        history.dump()
        peak = SavedPeak(str(history.device), size_bytes, None, _rows(history, size_bytes, self._training.tensors))
        return ProcessPeak(peak, _counted("reserved", history.device), origin_of(history.device).caveat)


def _counted(counter: str, device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get(f"{counter}_bytes.all.peak", 0))


def _rows(history: AllocatorHistory, size_bytes: int, seen: tuple[SeenTensor, ...]) -> tuple[Row, ...]:
    """Rows by kind and line, and what the allocator has rounded up, which sum to the peak."""
    groups: tuple[Row, ...] = ()
    if history.snapshot is not None and size_bytes:
        columns = snapshot_in_memory(_with_roles(history.snapshot, history.device, seen))
        if any(state.device == history.device.index for state in columns.devices):
            found = explain_replayed(replay_snapshot(columns, device=history.device.index))
            groups = found.worst.peak.rows
    rows = [replace(group, category=group.kind.words, phase="", stack=None, callers=()) for group in groups]
    rest = size_bytes - sum(row.bytes for row in rows)
    return (*rows, Row(rest, 1, ROUNDING, None, "", "", None, None, None, None)) if rest else tuple(rows)


def _with_roles(snapshot: dict[str, Any], device: torch.device, seen: tuple[SeenTensor, ...]) -> dict[str, Any]:
    """Return the snapshot, with the kinds of the device's seen tensors on the entries that allocated them."""
    counters, traces = read_counters(device), [*snapshot["device_traces"]]
    if counters is None:
        return dict(snapshot)
    entries = list(traces[device.index])
    rows = [row for row, entry in enumerate(entries) if entry["action"] == "alloc"]
    addresses = [entries[row]["addr"] for row in rows]
    own = [tensor for tensor in seen if tensor.device == device]
    for position, role in allocations_of(own, addresses, counters.num_allocations):
        row = rows[position]
        entries[row] = {**entries[row], "category": KIND_OF_ROLE[role].words}
    traces[device.index] = entries
    return {**snapshot, "device_traces": traces}
