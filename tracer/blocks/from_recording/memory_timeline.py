"""Bytes by category over time: torch's `MemoryProfileTimeline`, event by event, and the breakdown at its peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.arrays import Int, Ints, PerTimelineRow
from tracer.blocks.from_recording.allocator_count import default_device
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.blocks.from_recording.torch_categories import Categories, Category, categorize
from tracer.capture.recording import Recording

_PREEXISTING, _CREATE, _INCREMENT_VERSION, _DESTROY = 1, 2, 3, 4
_BEFORE = -1  # the time of what was there before the recording


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTimeline:
    """Running totals by category on one device, one row per event."""

    device: str  # Name as `str(torch.device)` writes it
    # [E] Time of the event. Rows of memory that was there before the recording come first and carry the time of the
    # earliest event; where there is none, -1000, which is torch's -1 us.
    times_ns: PerTimelineRow[Int]
    sizes_bytes: PerTimelineRow[Int]  # [E, 8] Bytes held after the event, by category
    num_preexisting: int  # How many of the first rows are memory from before the recording
    categories: tuple[Category, ...] = tuple(Category)  # The columns of `sizes_bytes`

    def __post_init__(self) -> None:
        if self.sizes_bytes.shape != (len(self.times_ns), len(self.categories)):
            raise ValueError(f"{len(self.times_ns)} times, but sizes of shape {self.sizes_bytes.shape}")

    @classmethod
    def from_profiler(cls, profiler: Any, device: str | None = None) -> MemoryTimeline:
        """The timeline of a finished `torch.profiler.profile`, or of its kept `profiler.kineto_results`.

        Args:
            device: `cpu`, `cuda:0`, ...; by default the recording's accelerator, else the CPU.

        Raises:
            RecordingError: Nothing was recorded.
        """
        from tracer.capture.profiler.event_tree import read_recording  # it alone needs torch

        recording = read_recording(profiler)
        return memory_timeline(recording, categorize(recording), device=device)

    def coalesce(self) -> tuple[Ints, Ints]:
        """The last row of each of torch's microseconds: what `MemoryProfileTimeline._coalesce_timeline` returns.

        Returns:
            Microseconds [rows] and sizes [rows, 9], whose first column is 0 as torch's is.

        Source:
            `_coalesce_timeline`, which truncates a floating-point division; `torch_microseconds` has its integer form.
        """
        microseconds = torch_microseconds(self.times_ns)
        new_row = np.ones(len(microseconds), bool)
        new_row[:-1] = microseconds[1:] != microseconds[:-1]
        if 0 < self.num_preexisting < len(new_row):
            new_row[self.num_preexisting - 1] = True
        sizes = self.sizes_bytes[new_row]
        return microseconds[new_row], np.concatenate([np.zeros((len(sizes), 1), np.int64), sizes], axis=1)


def torch_microseconds(times_ns: PerTimelineRow[Int]) -> PerTimelineRow[Int]:
    """[E] `int(t / 1000)` as torch computes it, in floating point, which rounds up from 875 ns on.

    Exact for real times until 2041: the quotient lies between 2**50 and 2**51, where doubles are 1/4 to 1/8 apart.
    """
    return np.asarray(times_ns // 1000 + (times_ns % 1000 >= 875), np.int64)


def device_index(recording: Recording, device: str) -> int:
    """Index of a device's name in the recording, or -1 where it does not appear; `cuda` means `cuda:0`."""
    for name in (device, f"{device}:0"):
        if name in recording.devices:
            return recording.devices.index(name)
    return -1


def memory_timeline(recording: Recording, categories: Categories, *, device: str | None = None) -> MemoryTimeline:
    """Lay out what each event did to each category.

    Source:
        `MemoryProfile.timeline` and `MemoryProfileTimeline`.
    """
    name = device or default_device([recording])
    index = device_index(recording, name)
    rows = np.concatenate([_untracked_rows(recording, index), _tensor_rows(recording, categories, index)])
    order = np.lexsort((rows["action"], rows["time"]))
    rows = rows[order]
    increments = np.flatnonzero(rows["action"] == _INCREMENT_VERSION)
    frees = rows["action"] == _DESTROY
    category = categories.of(rows["key"], rows["version"])
    deltas = np.zeros((len(rows), len(Category)), np.int64)
    deltas[np.arange(len(rows)), category] = np.where(frees, -rows["size"], rows["size"])
    # A new version moves the bytes from the old version's category to the new one's. Blocks that were never tensors
    # have one version only.
    deltas[increments] = 0
    after = rows["version"] + (rows["key"] >= 0)
    np.add.at(deltas, (increments, category[increments]), -rows["size"][increments])
    moved_to = categories.of(rows["key"][increments], after[increments])
    np.add.at(deltas, (increments, moved_to), rows["size"][increments])
    times = rows["time"].copy()
    num_preexisting = int((times == _BEFORE).sum())
    times[:num_preexisting] = times[num_preexisting] if num_preexisting < len(times) else 1000 * _BEFORE
    return MemoryTimeline(
        device=recording.devices[index] if index >= 0 else name,
        times_ns=times,
        sizes_bytes=np.cumsum(deltas, axis=0),
        num_preexisting=num_preexisting,
    )


_ROW = np.dtype([(name, np.int64) for name in ("time", "action", "key", "version", "size")])


def _table(time: Any, action: Any, key: Any, version: Any, size: Ints) -> npt.NDArray[Any]:
    rows = np.empty(len(size), _ROW)
    rows["time"], rows["action"], rows["key"], rows["version"], rows["size"] = time, action, key, version, size
    return rows


def _untracked_rows(recording: Recording, device: int) -> npt.NDArray[Any]:
    """Blocks that were never tensors, in tree order: made, freed, or there before if the make was not recorded."""
    allocations = recording.allocations
    which = np.flatnonzero((allocations.key < 0) & (allocations.device == device))
    live: set[int] = set()
    rows: list[tuple[int, int, int, int, int]] = []
    for time_ns, address, size in zip(
        allocations.time_ns[which].tolist(),
        allocations.address[which].tolist(),
        allocations.size_bytes[which].tolist(),
        strict=True,
    ):
        if size > 0:
            rows.append((time_ns, _INCREMENT_VERSION if address in live else _CREATE, -1, 0, size))
            live.add(address)
        else:
            rows.append((time_ns, _DESTROY, -1, 0, -size))
            if address in live:
                live.remove(address)
            else:
                rows.append((_BEFORE, _PREEXISTING, -1, 0, -size))
    return np.array(rows, _ROW)


def _tensor_rows(recording: Recording, categories: Categories, device: int) -> npt.NDArray[Any]:
    """Tensor storages: there before, made, written to, freed."""
    allocations, keys, edges = recording.allocations, recording.keys, recording.flow
    offset = categories.flow.slot_offset
    num_keys = len(keys.id)
    tensor = allocations.key >= 0
    made, freed = tensor & (allocations.size_bytes > 0), tensor & (allocations.size_bytes <= 0)
    made_ns, freed_ns = np.zeros(num_keys, np.int64), np.zeros(num_keys, np.int64)
    made_ns[allocations.key[made]] = allocations.time_ns[made]
    freed_ns[allocations.key[freed]] = allocations.time_ns[freed]

    here = keys.device == device
    has_allocation = np.zeros(num_keys, bool)
    has_allocation[allocations.key[made]] = True
    before = np.flatnonzero(here & ~has_allocation)
    before = before[categories.known_slots[offset[before]]]
    on_device = here[edges.edge_key]
    created = on_device & edges.edge_allocated
    written = on_device & ~edges.edge_allocated & ~edges.edge_freed & edges.edge_mutated
    destroyed = on_device & edges.edge_freed
    last_version = np.diff(offset) - 1

    parts = [_table(_BEFORE, _PREEXISTING, before, 0, keys.size_bytes[before])]
    key = edges.edge_key[created]
    parts.append(_table(made_ns[key], _CREATE, key, 0, keys.size_bytes[key]))
    key = edges.edge_key[written]
    version = categories.flow.edge_version[written]
    parts.append(
        _table(edges.node_time_ns[edges.edge_node[written]], _INCREMENT_VERSION, key, version, keys.size_bytes[key])
    )
    key = edges.edge_key[destroyed]
    parts.append(_table(freed_ns[key], _DESTROY, key, last_version[key], keys.size_bytes[key]))
    return np.concatenate(parts)


TAGGED = tuple(category for category in Category if category != Category.UNTAGGED)


@dataclass(frozen=True, slots=True)
class CycleBreakdown:
    """A cycle's peak by torch's categories."""

    true_peak_bytes: int  # The most bytes in use at one instant, as the allocator counted them
    # [7] Bytes by category, without UNTAGGED, when the categories together held most.
    at_tagged_peak_bytes: tuple[int, ...]
    tagged_peak_ns: int

    @property
    def tagged_peak_bytes(self) -> int:
        """The most bytes that torch had a category for at one instant."""
        return sum(self.at_tagged_peak_bytes)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Means over cycles.

    True peak: the instant with the most bytes. Tagged peak: that with the most bytes that torch has a category for.
    INTERMEDIATE is the difference, so that the tagged peak's categories and it sum to the true peak.
    """

    device: str  # Name as `str(torch.device)` writes it
    cycles: tuple[CycleBreakdown, ...]  # What was averaged, in order
    num_left_out: int = 0  # Cycles that were cut short, and are not among them

    @property
    def peak_bytes(self) -> int:
        """Mean true peak, in whole bytes."""
        return sum(cycle.true_peak_bytes for cycle in self.cycles) // len(self.cycles)

    @property
    def rows_bytes(self) -> dict[str, int]:
        """Mean bytes of each tagged category at the tagged peak, then INTERMEDIATE; they sum to `peak_bytes`."""
        rows = {
            category.name: sum(cycle.at_tagged_peak_bytes[category] for cycle in self.cycles) // len(self.cycles)
            for category in TAGGED
        }
        # The mean of the differences, which also takes the fractions of a byte that the other means leave over.
        rows["INTERMEDIATE"] = self.peak_bytes - sum(rows.values())
        return rows


def cycle_breakdown(recording: Recording, categories: Categories, lifetimes: BlockLifetimes) -> CycleBreakdown:
    """Find both peaks of one cycle."""
    timeline = memory_timeline(recording, categories, device=recording.devices[lifetimes.device])
    sizes = _without_the_dead(recording, categories, lifetimes, timeline)
    tagged = int(np.argmax(sizes[:, : len(TAGGED)].sum(axis=1)))
    return CycleBreakdown(
        true_peak_bytes=int(lifetimes.allocator_bytes.max()),
        at_tagged_peak_bytes=tuple(sizes[tagged, : len(TAGGED)].tolist()),
        tagged_peak_ns=int(timeline.times_ns[tagged]),
    )


def _without_the_dead(
    recording: Recording, categories: Categories, lifetimes: BlockLifetimes, timeline: MemoryTimeline
) -> PerTimelineRow[Int]:
    """[E, 8] the timeline less memory from before the recording whose address was handed out again.

    Nobody records the end of such memory on the CPU, so torch's timeline keeps it to its last row.
    """
    sizes = timeline.sizes_bytes
    dead = np.flatnonzero(lifetimes.died_unseen & (lifetimes.key >= 0))
    if not len(dead):
        return sizes
    sizes = sizes.copy()
    last_version = np.diff(categories.flow.slot_offset) - 1
    times = recording.allocations.time_ns[lifetimes.events]
    for block in dead.tolist():
        key = lifetimes.key[block : block + 1]
        category = int(categories.of(key, last_version[key])[0])
        since = np.searchsorted(timeline.times_ns, times[lifetimes.freed_at[block]])
        sizes[since:, category] -= recording.keys.size_bytes[key]
    return sizes
