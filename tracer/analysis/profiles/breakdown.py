"""The peak by torch's categories: at the tagged peak, as the guide's file has it, and at the true peak.

True peak: the instant with the most bytes. Tagged peak: the instant with the most bytes that torch has a category for.
INTERMEDIATE is the difference between the two, so that the tagged peak's categories and it sum to the true peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis.profiles.classify_blocks import Cycle
from tracer.analysis.profiles.memory_timeline import MemoryTimeline, memory_timeline
from tracer.analysis.profiles.torch_categories import Category
from tracer.arrays import Int, PerTimelineRow

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
    """Means over cycles."""

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


def cycle_breakdown(cycle: Cycle) -> CycleBreakdown:
    """Find both peaks of one cycle."""
    recording = cycle.recording
    timeline = memory_timeline(recording, cycle.categories, device=recording.devices[cycle.lifetimes.device])
    sizes = _without_the_dead(cycle, timeline)
    tagged = int(np.argmax(sizes[:, : len(TAGGED)].sum(axis=1)))
    return CycleBreakdown(
        true_peak_bytes=int(cycle.lifetimes.allocator_bytes.max()),
        at_tagged_peak_bytes=tuple(sizes[tagged, : len(TAGGED)].tolist()),
        tagged_peak_ns=int(timeline.times_ns[tagged]),
    )


def _without_the_dead(cycle: Cycle, timeline: MemoryTimeline) -> PerTimelineRow[Int]:
    """[E, 8] the timeline less memory from before the recording whose address was handed out again.

    Nobody records the end of such memory on the CPU, so torch's timeline keeps it to its last row.
    """
    recording, categories, lifetimes, sizes = cycle.recording, cycle.categories, cycle.lifetimes, timeline.sizes_bytes
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


def breakdown(device: str, cycles: Sequence[CycleBreakdown], *, num_left_out: int = 0) -> Breakdown:
    """Put cycles together.

    Raises:
        ValueError: There are none.
    """
    if not cycles:
        raise ValueError("a breakdown needs at least one cycle")
    return Breakdown(device=device, cycles=tuple(cycles), num_left_out=num_left_out)
