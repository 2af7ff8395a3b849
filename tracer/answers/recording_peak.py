"""The peak of a device: the live blocks, in rows that sum to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from tracer.answers.rows import Row, group_rows
from tracer.arrays import Int, PerBlock, totals_by
from tracer.blocks.from_recording.allocator_count import CountedParts
from tracer.blocks.from_recording.allocator_join import JoinedHistory, in_use_after, in_use_at, last_events
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.blocks.from_recording.blocks import Cycle, as_in_history
from tracer.blocks.kinds import Evidence
from tracer.blocks.table import Blocks, Phase
from tracer.capture.objects.known_storages import KnownStorages


@dataclass(frozen=True, slots=True)
class AllocatorPeak:
    """Facts of the peak that the allocator's own history alone has."""

    requested_bytes: int  # Sum of what was requested; the peak is the same, rounded up block by block
    pending_bytes: int  # Freed by the program and still used by another stream: neither allocated nor free
    reserved_bytes: int
    free_bytes: int  # Reserved bytes that were in no block in use
    largest_free_bytes: int  # The largest piece of that in one segment
    num_joined: int  # Blocks of the recording that the history has too, whether alive at the peak or not
    num_blocks: int  # Blocks that the recording saw being made


@dataclass(frozen=True, slots=True, eq=False)
class PeakReport:
    """The peak of one device in one cycle."""

    device: str  # Name as `str(torch.device)` writes it
    peak_bytes: int
    allocator_peak_bytes: int  # Counted without looking at blocks; the rows and `unexplained_bytes` sum to it
    counted: CountedParts  # The parts that sum to `allocator_peak_bytes`
    reserved_bytes: int  # Reserved memory at the peak; 0 where the device has no such thing
    time_ns: int
    position: int  # Position in `BlockLifetimes.events` of the event after which so much was in use
    step: str | None  # Name of the step, or None
    phase: str | None  # Phase of the allocation that made the peak, or None
    rows: tuple[Row, ...]
    blocks: Blocks
    row_of: PerBlock[Int]  # [B] The row of each of them
    allocator: AllocatorPeak | None = None  # From the allocator's own history; None where there is none
    threads: tuple[str, ...] = ()  # Other threads that called the model, which the profiler does not record

    @property
    def unexplained_bytes(self) -> int:
        """Bytes that were counted and are in no row; negative if rows show more than was counted."""
        return self.allocator_peak_bytes - self.peak_bytes

    @property
    def unseen_bytes(self) -> int:
        """Bytes of the peak that were allocated where the profiler does not record."""
        is_unseen = np.isin(self.blocks.evidence, (Evidence.UNSEEN, Evidence.UNSEEN_SAVED))
        return int(self.blocks.size_bytes[is_unseen].sum())

    def by_category(self) -> dict[str, int]:
        """Bytes by category, largest first."""
        return {category: size for category, (size, _) in totals_by(self.rows, attrgetter("category")).items()}


def worst_of(peaks: Sequence[PeakReport]) -> int:
    """Index of the largest peak; of equal ones the one with allocator history, else the first."""
    return max(range(len(peaks)), key=lambda index: (peaks[index].peak_bytes, peaks[index].allocator is not None))


def peak_position(lifetimes: BlockLifetimes) -> int:
    """Position in `BlockLifetimes.events` of the event after which most was allocated; the first maximum wins."""
    return int(np.argmax(lifetimes.allocator_bytes))


def peak_report(
    cycle: Cycle,
    *,
    known: KnownStorages | None = None,
    history: JoinedHistory | None = None,
    entry: int | None = None,
) -> PeakReport:
    """Explain the peak of a cycle, in which there is at least one event.

    Args:
        entry: Explain what was in use after this entry of the history, in place of the peak.
    """
    recording, attribution, lifetimes, blocks = cycle.recording, cycle.attribution, cycle.lifetimes, cycle.blocks
    made_at = position = peak_position(lifetimes)
    in_use = None
    if history is not None and entry is not None:
        made_at, position = last_events(history, lifetimes, entry)
        in_use = in_use_after(history, lifetimes, entry, position)
    elif history is not None:
        in_use = in_use_at(history, lifetimes, position)
    counted, counted_bytes = lifetimes.count.at(position), int(lifetimes.allocator_bytes[position])
    if in_use is not None:  # whose sizes of what is unmapped are the allocator's own
        counted_bytes += counted.asleep_bytes - in_use.asleep_bytes
        counted = replace(counted, asleep_bytes=in_use.asleep_bytes)
    if in_use is not None and entry is not None:  # which may lie between two recorded events
        counted_bytes = in_use.memory.allocated_bytes - in_use.pending_bytes - in_use.asleep_bytes
    asleep_bytes = lifetimes.asleep.bytes_at(position)
    event = int(lifetimes.events[made_at])
    if history is not None and in_use is not None:
        blocks = as_in_history(blocks, in_use, history, num_events=len(lifetimes.events))
    else:
        blocks = blocks.take(lifetimes.alive_at(position))
    allocations = recording.allocations
    step = int(attribution.allocation_step[event])
    rows, row_of = group_rows(blocks)
    return PeakReport(
        device=recording.devices[lifetimes.device],
        peak_bytes=int(blocks.size_bytes.sum()),
        allocator_peak_bytes=counted_bytes,
        counted=counted,
        reserved_bytes=max(0, int(allocations.total_reserved_bytes[event]) - asleep_bytes),
        time_ns=int(allocations.time_ns[event]),
        position=position,
        step=attribution.step_names[step] if step >= 0 else None,
        phase=Phase(int(attribution.allocation_phase[event])).name.lower(),
        rows=rows,
        blocks=blocks,
        row_of=row_of,
        allocator=AllocatorPeak(
            requested_bytes=int(in_use.requested_bytes.sum()),
            pending_bytes=in_use.pending_bytes,
            reserved_bytes=in_use.memory.reserved_bytes - asleep_bytes,
            free_bytes=in_use.memory.free_bytes,
            largest_free_bytes=in_use.memory.largest_free_bytes,
            num_joined=int((history.entry >= 0).sum()),
            num_blocks=int((lifetimes.allocation >= 0).sum()),
        )
        if history is not None and in_use is not None
        else None,
        threads=known.threads if known is not None else (),
    )
