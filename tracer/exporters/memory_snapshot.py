"""memory_snapshot.pkl: what `torch.cuda.memory._snapshot()` returns, for any device, for pytorch.org/memory_viz."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tracer.answers.labels import UNKNOWN, Frame, Labels, PythonStacks
from tracer.arrays import Ints, Rows
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.capture.recording import Recording
from tracer.exporters.files import write_atomically
from tracer.snapshot.columns import CACHING_ALLOCATOR
from tracer.units import NS_PER_US

# The page at pytorch.org/memory_viz reads protocols 2 to 4 (pytorch issue 183842).
PICKLE_PROTOCOL = 4


def write_memory_snapshot(snapshot: dict[str, Any], path: Path) -> None:
    """Write memory_snapshot.pkl, which pytorch.org/memory_viz opens."""
    write_atomically(path, pickle.dumps(snapshot, protocol=PICKLE_PROTOCOL))


def snapshot_of_recording(
    recording: Recording, lifetimes: BlockLifetimes, *, labels: Labels | None = None
) -> dict[str, Any]:
    """The structure of an allocator snapshot, from the profiler's allocation events of one device.

    The CPU has no segments. Address ranges that blocks ever lay in, merged where they touch, stand in for them: each
    encloses its blocks, and together they are the memory that the run has used.
    """
    stacks, lifetimes = PythonStacks(recording), _with_addresses(lifetimes)
    number = recording.devices[lifetimes.device].rpartition(":")[2]
    device = int(number) if number.isdigit() else 0  # the CPU has none
    return {
        "segments": [{**segment, "device": device} for segment in _segments(lifetimes, stacks, labels)],
        # One trace for each device up to this one: its place in the list is what says whose it is.
        "device_traces": [*([] for _ in range(device)), _trace(recording, lifetimes, stacks, labels)],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False, CACHING_ALLOCATOR: False},
        "external_annotations": [{**mark, "device": device} for mark in _annotations(recording)],
    }


def _with_addresses(lifetimes: BlockLifetimes) -> BlockLifetimes:
    """Give blocks of unknown address, such as a count's remainder, addresses behind all others."""
    unknown = np.flatnonzero(lifetimes.address < 0)
    if not len(unknown):
        return lifetimes
    address, size = lifetimes.address.copy(), lifetimes.size_bytes
    begin = int((address + size).max(initial=0))
    address[unknown] = begin + np.cumsum(size[unknown]) - size[unknown]
    return replace(lifetimes, address=address)


def _trace(
    recording: Recording, lifetimes: BlockLifetimes, stacks: PythonStacks, labels: Labels | None
) -> list[dict[str, Any]]:
    """Entries in allocator order; what was made unseen has one without frames where it begins to count.

    The entries that free a block from before have its label: the viewer shows that of such a block.
    """
    allocations = recording.allocations
    block_of = {int(row): block for block, row in enumerate(lifetimes.allocation.tolist()) if row >= 0}
    freed = _blocks_at(lifetimes.freed_at, np.arange(len(lifetimes.freed_at)))
    unseen = _blocks_at(lifetimes.made_at, np.flatnonzero(lifetimes.made_unseen))
    entries: list[dict[str, Any]] = []

    def allocate(block: int, time_us: int, frames: list[Frame]) -> None:
        entry = _entry("alloc", lifetimes, block, time_us, frames)
        if labels is not None:
            entry["category"] = labels.category[block]
            entry["frames"] = labels.stack(block, frames)
        entries.append(entry)

    for position, row in enumerate(lifetimes.events.tolist()):
        time_us = int(allocations.time_ns[row]) // NS_PER_US
        frames = stacks.of_allocation(row)
        for block in freed.get(position, ()):
            is_labelled = labels is not None and lifetimes.allocation[block] < 0 and not lifetimes.made_unseen[block]
            of_block = labels.stack(block, ()) if labels is not None and is_labelled else frames
            for action in ("free_requested", "free_completed"):
                entries.append(_entry(action, lifetimes, block, time_us, of_block))
        for block in unseen.get(position, ()):
            allocate(block, time_us, [])
        if row in block_of:
            allocate(block_of[row], time_us, frames)
    if labels is not None:
        for entry in entries:
            entry.setdefault("category", UNKNOWN)
    return entries


def _blocks_at(positions: Ints, blocks: Rows) -> dict[int, list[int]]:
    by_position: dict[int, list[int]] = {}
    for block in blocks.tolist():
        by_position.setdefault(int(positions[block]), []).append(block)
    return by_position


def _entry(action: str, lifetimes: BlockLifetimes, block: int, time_us: int, frames: list[Frame]) -> dict[str, Any]:
    return {
        "action": action,
        "addr": int(lifetimes.address[block]),
        "size": int(lifetimes.size_bytes[block]),
        "stream": 0,
        "time_us": time_us,
        "frames": frames,
    }


def _segments(lifetimes: BlockLifetimes, stacks: PythonStacks, labels: Labels | None) -> list[dict[str, Any]]:
    end = len(lifetimes.events)
    alive = lifetimes.alive_at(end - 1)
    alive = alive[np.argsort(lifetimes.address[alive], kind="stable")]
    live = [(int(lifetimes.address[block]), int(lifetimes.size_bytes[block]), block) for block in alive.tolist()]
    segments, next_live = [], 0
    for start, stop in _ranges(lifetimes):
        blocks: list[dict[str, Any]] = []
        at = start
        while next_live < len(live) and live[next_live][0] < stop:
            address, size, block = live[next_live]
            next_live += 1
            if address < at:  # two storages from before the recording in one place: the first stands for both
                blocks[-1] |= {key: blocks[-1][key] + size for key in ("size", "requested_size")}
                at += size
                continue
            if address > at:
                blocks.append(_block(at, address - at, "inactive", []))
            frames = stacks.of_allocation(int(lifetimes.allocation[block]))
            if labels is not None:
                # All that the viewer shows of a block from before the recording, such as a parameter's.
                frames = labels.stack(block, frames)
            blocks.append(_block(address, size, "active_allocated", frames))
            at = address + size
        if at < stop:
            blocks.append(_block(at, stop - at, "inactive", []))
        segments.append(_segment(start, stop - start, blocks))
    return segments


def _ranges(lifetimes: BlockLifetimes) -> list[tuple[int, int]]:
    """Address ranges that blocks ever lay in, merged where they overlap or touch.

    Of two storages from before in one place each has its own bytes, 80 of 0 to 100 and 20 of 50 to 70: there is room
    for both, one behind the other.
    """
    order = np.argsort(lifetimes.address, kind="stable")
    ranges: list[tuple[int, int]] = []
    end_of_before = 0
    columns = (lifetimes.address[order], lifetimes.size_bytes[order], lifetimes.made_at[order] < 0)
    for start, size, is_before in zip(*(column.tolist() for column in columns), strict=True):
        end = (end_of_before if is_before and start < end_of_before else start) + size
        end_of_before = end if is_before else end_of_before
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], end))
        else:
            ranges.append((start, end))
    return ranges


def _block(address: int, size: int, state: str, frames: list[Frame]) -> dict[str, Any]:
    requested = size if state == "active_allocated" else 0
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}


def _segment(address: int, size: int, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    allocated = sum(block["size"] for block in blocks if block["state"] == "active_allocated")
    return {
        "address": address,
        "total_size": size,
        "stream": 0,
        "segment_type": "large" if size > 1 << 20 else "small",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": allocated,
        "frames": [],
        "blocks": blocks,
    }


def _annotations(recording: Recording) -> list[dict[str, Any]]:
    spans = recording.spans
    marks = []
    for name, start, end in zip(spans.name.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist(), strict=True):
        marks += [(start, "START", recording.strings[name]), (end, "END", recording.strings[name])]
    return [{"name": name, "stage": stage, "time_us": time_ns // NS_PER_US} for time_ns, stage, name in sorted(marks)]
