"""What filled the device at its worst moment: the live blocks at the peak, in rows that sum to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from tracer.analysis.kinds import Evidence, Kind
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.allocator_count import CountedParts
from tracer.analysis.profiles.allocator_join import InUse, JoinedHistory, in_use_after, in_use_at, last_events
from tracer.analysis.profiles.attribution import Phase
from tracer.analysis.profiles.block_lifetimes import BlockLifetimes
from tracer.analysis.profiles.classify_blocks import ClassifiedBlocks, Cycle
from tracer.analysis.profiles.peak_rows import group_rows
from tracer.analysis.profiles.torch_categories import Category
from tracer.arrays import Int, PerBlock, totals_by
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
    counted: CountedParts  # What it is the sum of
    reserved_bytes: int  # Reserved memory at the peak; 0 where the device has no such thing
    time_ns: int
    position: int  # Position in `BlockLifetimes.events` of the event after which so much was in use
    step: str | None  # Name of the step, or None
    phase: str | None  # Phase of the allocation that made the peak, or None
    rows: tuple[PeakRow, ...]
    blocks: ClassifiedBlocks
    row_of: PerBlock[Int]  # [B] The row of each of them
    allocator: AllocatorPeak | None = None  # From the allocator's own history; None where there is none
    threads: tuple[str, ...] = ()  # Other threads that called the model, which the profiler does not record

    @property
    def unexplained_bytes(self) -> int:
        """What was counted and is in no row; negative where rows show more than was counted."""
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
    in_use, counted_bytes = None, int(lifetimes.allocator_bytes[position])
    if history is not None and entry is not None:
        made_at, position = last_events(history, lifetimes, entry)
        in_use = in_use_after(history, lifetimes, entry, position)
        counted_bytes = in_use.memory.allocated_bytes - in_use.pending_bytes
    elif history is not None:
        in_use = in_use_at(history, lifetimes, position)
    event = int(lifetimes.events[made_at])
    alive = lifetimes.alive_at(position)
    if in_use is not None:
        blocks = _by_the_allocators_books(blocks.take(in_use.block[in_use.block >= 0]), in_use)
    else:
        blocks = blocks.take(alive)
    allocations = recording.allocations
    step = int(attribution.allocation_step[event])
    rows, row_of = group_rows(cycle, known, blocks, history=history)
    return PeakReport(
        device=recording.devices[lifetimes.device],
        peak_bytes=int(blocks.size_bytes.sum()),
        allocator_peak_bytes=counted_bytes,
        counted=lifetimes.count.at(position),
        reserved_bytes=max(0, int(allocations.total_reserved_bytes[event])),
        time_ns=int(allocations.time_ns[event]),
        position=position,
        step=attribution.step_names[step] if step >= 0 else None,
        phase=Phase(int(attribution.allocation_phase[event])).name.lower(),
        rows=rows,
        blocks=blocks,
        row_of=row_of,
        allocator=_allocator_peak(blocks, history, in_use, lifetimes),
        threads=known.threads if known is not None else (),
    )


def _by_the_allocators_books(blocks: ClassifiedBlocks, in_use: InUse) -> ClassifiedBlocks:
    """Sizes as the allocator has them, and behind the known blocks those that the recording never saw."""
    seen = in_use.block >= 0
    unseen = ~seen
    # Blocks from before the recording are known by their tensors: they lack a line, and a tensor may be smaller.
    known = replace(
        blocks,
        size_bytes=in_use.size_bytes[seen],
        requested_bytes=in_use.requested_bytes[seen],
        stack=np.where(blocks.allocation < 0, in_use.stack[seen], -1),
    )
    return _with_unseen(
        known,
        size_bytes=in_use.size_bytes[unseen],
        requested_bytes=in_use.requested_bytes[unseen],
        address=in_use.address[unseen],
        stack=in_use.stack[unseen],
        evidence=np.full(int(unseen.sum()), int(Evidence.HISTORY)),
    )


def _allocator_peak(
    blocks: ClassifiedBlocks, history: JoinedHistory | None, in_use: InUse | None, lifetimes: BlockLifetimes
) -> AllocatorPeak | None:
    if history is None or in_use is None:
        return None
    memory = in_use.memory
    return AllocatorPeak(
        requested_bytes=int(in_use.requested_bytes.sum()),
        pending_bytes=in_use.pending_bytes,
        reserved_bytes=memory.reserved_bytes,
        free_bytes=memory.free_bytes,
        largest_free_bytes=memory.largest_free_bytes,
        num_joined=int((history.entry >= 0).sum()),
        num_blocks=int((lifetimes.allocation >= 0).sum()),
    )


def _with_unseen(blocks: ClassifiedBlocks, **columns: PerBlock[Int]) -> ClassifiedBlocks:
    """Add blocks that the allocator counts and nothing in the recording shows: they were there before it."""
    usual = {"kind": Kind.BEFORE_RECORDING, "torch_category": Category.UNTAGGED, "evidence": Evidence.SEEN_BEFORE}
    num = len(columns["size_bytes"])
    rest = {name: np.full(num, int(usual.get(name, -1)), np.int64) for name in ClassifiedBlocks.names()}
    return blocks.followed_by(ClassifiedBlocks(**rest | columns))
