"""The peak of a device, whatever it was recorded by: the live blocks, in rows that sum to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from tracer.allocator.fragmentation import Fragmentation, fragmentation_after
from tracer.answers.rows import BY_LINE, Row, group_rows
from tracer.arrays import Column, Int, Ints, PerBlock, grouped, totals_by
from tracer.blocks.from_snapshot.sites import pool_words, pools_of_graphs
from tracer.blocks.from_snapshot.timeline import innermost_region
from tracer.blocks.kinds import BEFORE_RECORDING, Evidence, Kind
from tracer.blocks.table import NOT_COUNTED, Blocks, CountedParts, Phase
from tracer.snapshot.actions import Action
from tracer.snapshot.replay import BEFORE
from tracer.units import NS_PER_US

if TYPE_CHECKING:
    from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
    from tracer.blocks.from_recording.cycle import Cycle
    from tracer.blocks.from_snapshot.blocks import ReplayedDevice
    from tracer.capture.objects.known_storages import KnownStorages

NO_ANNOTATION = "no annotation"
NO_NAME = "no name"
_NOT_TOLD = -1


@dataclass(frozen=True, slots=True)
class Share:
    """Part of the peak under one name."""

    name: str
    bytes: int
    count: int


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
class Peak:
    """The moment at which one device had most in use, the first of equals, or another moment of which that is asked."""

    device: str  # Name as `str(torch.device)` writes it; of a snapshot `device 0`
    position: int  # Of the event after which so much was in use; -1 is the start
    time_ns: int  # -1 where the events have no times
    phase: str | None  # In which that was, or None
    peak_bytes: int  # As its source counts: of a recording as allocated, of a snapshot as requested
    allocator_peak_bytes: int  # Counted without looking at blocks; the rows and `unexplained_bytes` sum to it
    reserved_bytes: int  # Reserved memory at the peak; 0 where the device has no such thing
    rows: tuple[Row, ...]
    blocks: Blocks  # In use then
    row_of: PerBlock[Int]  # [B] The row of each of them
    # Of a recording:
    counted: CountedParts = NOT_COUNTED  # The parts that sum to `allocator_peak_bytes`
    step: str | None = None  # Name of the step, or None
    allocator: AllocatorPeak | None = None  # From the allocator's own history; None where there is none
    threads: tuple[str, ...] = ()  # Other threads that called the model, which the profiler does not record
    # Of a snapshot:
    fragmentation: Fragmentation | None = None  # None where no caching allocator served the requests
    by_annotation: tuple[Share, ...] = ()  # By the innermost region that was open at the allocation
    by_name: tuple[Share, ...] = ()  # By the name that the program has given, at the allocation or later
    # By the stream and the pool that the memory belongs to, as far as entries and segments tell.
    by_stream: tuple[Share, ...] = ()

    @property
    def time_us(self) -> int:
        """Its time in microseconds, or -1."""
        return self.time_ns // NS_PER_US if self.time_ns >= 0 else -1

    @property
    def reserved_then_bytes(self) -> int:
        """Bytes reserved at that moment, by the allocator's own history where it is there; else by its counter."""
        return self.allocator.reserved_bytes if self.allocator is not None else self.reserved_bytes

    @property
    def unexplained_bytes(self) -> int:
        """Bytes that were counted and are in no row; negative if rows show more than was counted."""
        return self.allocator_peak_bytes - self.peak_bytes

    @property
    def unseen_bytes(self) -> int:
        """Bytes of the peak that were allocated where the profiler does not record."""
        is_unseen = np.isin(self.blocks.evidence, (Evidence.UNSEEN, Evidence.UNSEEN_SAVED))
        return int(self.blocks.size_bytes[is_unseen].sum())

    @property
    def before_recording_bytes(self) -> int:
        """The part that was there before the recording."""
        return sum(row.bytes for row in self.rows if row.is_before_recording)

    @property
    def by_kind(self) -> tuple[Share, ...]:
        """Rows by kind alone."""
        return _shares(self.blocks, lambda kind: Kind(kind).words, self.blocks.kind)

    def by_category(self) -> dict[str, int]:
        """Bytes by the name of the kind, as `OPTIMIZER_STATE`, largest first."""
        return {category: size for category, (size, _) in totals_by(self.rows, attrgetter("category")).items()}

    @property
    def has_annotations(self) -> bool:
        """True if some of the peak was allocated in a named region."""
        return any(share.name not in (BEFORE_RECORDING, NO_ANNOTATION) for share in self.by_annotation)

    @property
    def has_names(self) -> bool:
        """True if the program has given some of the peak a name."""
        return any(share.name not in (BEFORE_RECORDING, NO_NAME) for share in self.by_name)


def size_of_peak(peak: Peak) -> tuple[int, bool]:
    """The key by which the largest of several peaks is found: of equal ones that with allocator history."""
    return peak.peak_bytes, peak.allocator is not None


def peak_position(lifetimes: BlockLifetimes) -> int:
    """Position in `BlockLifetimes.events` of the event after which most was allocated; the first maximum wins."""
    return int(np.argmax(lifetimes.allocator_bytes))


def peak_of_cycle(
    cycle: Cycle,
    *,
    known: KnownStorages | None = None,
    entry: int | None = None,
) -> Peak:
    """Explain the peak of a cycle, in which there is at least one event.

    Args:
        entry: Explain what was in use after this entry of the cycle's history, in place of the peak.
    """
    # Whoever explains a snapshot does not wait for torch.
    from tracer.blocks.from_recording.allocator_join import in_use_after, in_use_at, last_events

    recording, attribution, lifetimes, blocks = cycle.recording, cycle.attribution, cycle.lifetimes, cycle.blocks
    history = cycle.history
    made_at = position = peak_position(lifetimes)
    in_use = None
    if history is not None and entry is not None:
        made_at, position = last_events(history, lifetimes, entry)
        in_use = in_use_after(history, lifetimes, blocks, entry, position)
    elif history is not None:
        in_use = in_use_at(history, lifetimes, blocks, position)
    counted, counted_bytes = lifetimes.count.at(position), int(lifetimes.allocator_bytes[position])
    if in_use is not None:  # whose sizes of what is unmapped are the allocator's own
        counted_bytes += counted.asleep_bytes - in_use.asleep_bytes
        counted = replace(counted, asleep_bytes=in_use.asleep_bytes)
    if in_use is not None and entry is not None:  # which may lie between two recorded events
        counted_bytes = in_use.memory.allocated_bytes - in_use.pending_bytes - in_use.asleep_bytes
    asleep_bytes = lifetimes.asleep.bytes_at(position)
    event = int(lifetimes.events[made_at])
    blocks = in_use.blocks if in_use is not None else blocks.take(lifetimes.alive_at(position))
    allocations = recording.allocations
    step = int(attribution.allocation_step[event])
    rows, row_of = group_rows(blocks)
    return Peak(
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
            requested_bytes=int(blocks.requested_bytes.sum()),
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


def peak_of_device(device: ReplayedDevice) -> Peak:
    """Explain the peak of one device of a snapshot to the byte."""
    state, replay, entry = device.state, device.replay, device.replay.peak_entry
    rows = device.blocks.alive_at(entry)
    blocks, memory = device.blocks.take(rows), fragmentation_after(state, replay, entry)
    in_rows, row_of = group_rows(blocks, merged=BY_LINE, with_callers=True)
    return Peak(
        device=f"device {state.device}",
        position=entry,
        time_ns=int(state.trace.time_us[entry]) * NS_PER_US if entry >= 0 and state.trace.time_us[entry] >= 0 else -1,
        phase=device.kinds.phase_at(entry) or None,
        peak_bytes=int(blocks.size_bytes.sum()),
        allocator_peak_bytes=int(replay.requested_bytes[entry + 1]),
        reserved_bytes=int(replay.reserved_bytes[entry + 1]),
        rows=in_rows,
        blocks=blocks,
        row_of=row_of,
        fragmentation=memory if device.snapshot.has_allocator else None,
        by_annotation=_by_annotation(device, blocks),
        by_name=_by_name(device, blocks, entry),
        by_stream=_by_stream(device, blocks),
    )


def _entries(device: ReplayedDevice, blocks: Blocks) -> tuple[Ints, Ints]:
    """[B] the entry that made each block, and that which frees it; -1 for none."""
    lives = device.replay.lives
    return lives.alloc_entry[blocks.row], lives.free_entry[blocks.row]


def _by_annotation(device: ReplayedDevice, blocks: Blocks) -> tuple[Share, ...]:
    region = innermost_region(device.state, _entries(device, blocks)[0])
    spelled = {-2: BEFORE_RECORDING, -1: NO_ANNOTATION}
    return _shares(
        blocks,
        lambda name: spelled.get(name) or device.snapshot.text(name),
        np.where(blocks.made_at == BEFORE, -2, region),
    )


def _by_name(device: ReplayedDevice, blocks: Blocks, entry: int) -> tuple[Share, ...]:
    """Bytes by what `_set_memory_metadata` said at the allocation, or `_annotate_tensor` last, up to an entry."""
    trace, (made, _), address = device.state.trace, _entries(device, blocks), blocks.address
    name = np.full(len(blocks), -1, np.int64)
    if (trace.metadata >= 0).any():
        name = np.where(made >= 0, trace.metadata[np.maximum(made, 0)], name)
        by_address = np.argsort(address)
        notes = trace.where(Action.ANNOTATE)
        notes = notes[notes <= entry] if len(blocks) else notes[:0]
        noted = by_address[np.minimum(np.searchsorted(address, trace.addr[notes], sorter=by_address), len(blocks) - 1)]
        is_its = (address[noted] == trace.addr[notes]) & (blocks.made_at[noted] < notes)
        name[noted[is_its]] = trace.metadata[notes[is_its]]  # of several notes numpy keeps the last
    name = np.where((name < 0) & (blocks.made_at == BEFORE), -2, name)
    spelled = {-2: BEFORE_RECORDING, -1: NO_NAME}
    return _shares(blocks, lambda number: spelled.get(number) or device.snapshot.text(number) or NO_NAME, name)


def _by_stream(device: ReplayedDevice, blocks: Blocks) -> tuple[Share, ...]:
    """Bytes by stream and pool; a block without an entry counts for the segment that it lies in."""
    trace, segments, (made, freed) = device.state.trace, device.state.segments, _entries(device, blocks)
    entries = np.where(made >= 0, made, freed)
    stream, pool = np.full(len(blocks), _NOT_TOLD), np.full(len(blocks), -1, dtype=np.int64)
    if len(segments):
        order = np.argsort(segments.address, kind="stable")
        at = order[np.maximum(np.searchsorted(segments.address[order], blocks.address, side="right") - 1, 0)]
        offset = blocks.address - segments.address[at]
        inside = (offset >= 0) & (offset < segments.total_size[at])
        stream, pool = np.where(inside, segments.stream[at], stream), np.where(inside, segments.pool[at], pool)
    if len(trace):
        known = entries >= 0
        stream = np.where(known, trace.stream[np.maximum(entries, 0)], stream)
        if (trace.pool >= 0).any():  # entries name their pool from torch 2.12 on
            pool = np.where(known, trace.pool[np.maximum(entries, 0)], pool)
    of_graphs = pools_of_graphs(device.state, device.sites)

    def place(stream: int, pool: int) -> str:
        of_stream = "stream not recorded" if stream == _NOT_TOLD else f"stream {stream}"
        words = pool_words(device.snapshot.text(pool), is_of_graphs=pool in of_graphs) if pool >= 0 else ""
        return f"{of_stream}, {words}" if words else of_stream

    return _shares(blocks, place, stream, pool)


def _shares(blocks: Blocks, name: Callable[..., str], *columns: Column[Int]) -> tuple[Share, ...]:
    """Blocks added up by the name that some columns give them, largest first."""
    names = grouped(columns, name)
    shares = map(Share, names.keys, names.sums(blocks.size_bytes), names.counts())
    return tuple(sorted(shares, key=lambda share: (-share.bytes, share.name)))
