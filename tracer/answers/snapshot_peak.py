"""The peak of a device and the blocks that are never freed, by line and by kind."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracer.allocator.fragmentation import Fragmentation, fragmentation_after
from tracer.answers.rows import Row, rows_of_lines
from tracer.arrays import Grouped, Ints, grouped
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.sites import pool_words, pools_of_graphs
from tracer.blocks.kinds import BEFORE_RECORDING, Kind, kind_named
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import Annotations, DeviceState, Int32s
from tracer.snapshot.replay import BEFORE

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
class Peak:
    """The moment with the most requested bytes in use, the first of equals."""

    entry: int  # The entry after which it was reached; -1 if at the start of the recording
    time_us: int  # Its time, or -1 where the recording has none
    phase: str  # `backward` or `optimizer` where the recording shows it, else empty
    requested_bytes: int  # Bytes in use, as asked for
    before_recording_bytes: int  # The part of the requested bytes that was there before the first entry
    groups: tuple[Row, ...]  # By line and kind; they sum to the requested bytes, like the two below
    by_kind: tuple[Share, ...]  # By kind alone
    by_annotation: tuple[Share, ...]  # By the innermost region that was open at the allocation
    by_name: tuple[Share, ...]  # By the name that the program has given, at the allocation or later
    # By the stream and the pool that the memory belongs to, as far as entries and segments tell.
    by_stream: tuple[Share, ...]
    fragmentation: Fragmentation | None  # None where no caching allocator served the requests

    @property
    def by_category(self) -> dict[str, int]:
        """Bytes by the name of the kind, as `OPTIMIZER_STATE`, largest first; they sum to the requested bytes."""
        return {kind.name: share.bytes for share in self.by_kind if (kind := kind_named(share.name)) is not None}

    @property
    def has_annotations(self) -> bool:
        """Whether some of it was made in a named region."""
        return any(share.name not in (BEFORE_RECORDING, NO_ANNOTATION) for share in self.by_annotation)

    @property
    def has_names(self) -> bool:
        """Whether the program has given some of it a name."""
        return any(share.name not in (BEFORE_RECORDING, NO_NAME) for share in self.by_name)


def find_peak(device: ReplayedDevice) -> Peak:
    """Explain the peak of one device to the byte."""
    state, replay, kinds = device.state, device.replay, device.kinds
    entry, lives = replay.peak_entry, replay.lives
    rows = lives.alive_after(entry)
    before = rows[(lives.begin[rows] == BEFORE) & (len(state.trace) > 0)]
    return Peak(
        entry=entry,
        time_us=int(state.trace.time_us[entry]) if entry >= 0 else -1,
        phase=kinds.phase_at(entry),
        requested_bytes=int(replay.requested_bytes[entry + 1]),
        before_recording_bytes=int(lives.requested_bytes[before].sum()),
        groups=rows_of_lines(device.blocks.take(rows)),
        by_kind=_shares(grouped([kinds.of(rows)], lambda kind: Kind(kind).words), lives.requested_bytes[rows]),
        by_annotation=_by_annotation(device, rows),
        by_name=_by_name(device, rows, entry),
        by_stream=_by_stream(device, rows),
        fragmentation=fragmentation_after(state, replay, entry) if device.snapshot.has_allocator else None,
    )


def never_freed(device: ReplayedDevice) -> tuple[Row, ...]:
    """Blocks that the recording allocated and did not free, by line and kind, largest first."""
    lives = device.replay.lives
    rows = np.flatnonzero((lives.begin > BEFORE) & (lives.end == len(device.state.trace)))
    return rows_of_lines(device.blocks.take(rows))


def _by_annotation(device: ReplayedDevice, rows: Ints) -> tuple[Share, ...]:
    lives = device.replay.lives
    region = innermost_region(device.state, lives.alloc_entry[rows])
    names = np.where(lives.begin[rows] == BEFORE, -2, region)
    spelled = {-2: BEFORE_RECORDING, -1: NO_ANNOTATION}
    return _shares(
        grouped([names], lambda name: spelled.get(name) or device.snapshot.text(name)), lives.requested_bytes[rows]
    )


def _by_name(device: ReplayedDevice, rows: Ints, entry: int) -> tuple[Share, ...]:
    """Bytes by what `_set_memory_metadata` said at the allocation, or `_annotate_tensor` last, up to an entry."""
    lives, trace = device.replay.lives, device.state.trace
    made = lives.alloc_entry[rows]
    name = np.full(len(rows), -1, np.int64)
    if (trace.metadata >= 0).any():
        name = np.where(made >= 0, trace.metadata[np.maximum(made, 0)], name)
        by_address = np.argsort(lives.addr[rows])
        notes = trace.where(Action.ANNOTATE)
        notes = notes[notes <= entry] if len(rows) else notes[:0]
        place = np.searchsorted(lives.addr[rows], trace.addr[notes], sorter=by_address)
        noted = by_address[np.minimum(place, len(rows) - 1)]
        is_its = (lives.addr[rows[noted]] == trace.addr[notes]) & (lives.begin[rows[noted]] < notes)
        name[noted[is_its]] = trace.metadata[notes[is_its]]  # of several notes numpy keeps the last
    name = np.where((name < 0) & (lives.begin[rows] == BEFORE), -2, name)
    spelled = {-2: BEFORE_RECORDING, -1: NO_NAME}
    words = grouped([name], lambda number: spelled.get(number) or device.snapshot.text(number) or NO_NAME)
    return _shares(words, lives.requested_bytes[rows])


def _by_stream(device: ReplayedDevice, rows: Ints) -> tuple[Share, ...]:
    """Bytes by stream and pool; a block without an entry counts for the segment that it lies in."""
    lives, trace, segments = device.replay.lives, device.state.trace, device.state.segments
    entries = np.where(lives.alloc_entry[rows] >= 0, lives.alloc_entry[rows], lives.free_entry[rows])
    stream, pool = np.full(len(rows), _NOT_TOLD), np.full(len(rows), -1, dtype=np.int64)
    if len(segments):
        order = np.argsort(segments.address, kind="stable")
        at = order[np.maximum(np.searchsorted(segments.address[order], lives.addr[rows], side="right") - 1, 0)]
        offset = lives.addr[rows] - segments.address[at]
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

    return _shares(grouped([stream, pool], place), lives.requested_bytes[rows])


def _shares(names: Grouped[str], size_bytes: Ints) -> tuple[Share, ...]:
    """Blocks added up by name, largest first."""
    shares = map(Share, names.keys, names.sums(size_bytes), names.counts())
    return tuple(sorted(shares, key=lambda share: (-share.bytes, share.name)))


OUTSIDE = -1


def innermost_region(state: DeviceState, entries: Ints) -> Int32s:
    """The innermost region that was open at each entry, as numbers of texts; -1 where none was.

    An entry in the microsecond of a start counts as inside, one in that of an end as outside. Ends without a start are
    ignored; a start without an end stays open.

    Args:
        entries: Indices of entries, or -1 for none [rows].
    """
    none = np.full(len(entries), OUTSIDE, dtype=np.int32)
    notes = state.annotations
    if not len(notes) or not len(state.trace):
        return none
    order = np.argsort(notes.time_us, kind="stable")
    open_after = np.array([OUTSIDE, *_open_regions(notes, order.tolist())], dtype=np.int32)
    time_us = state.trace.time_us[np.maximum(entries, 0)]
    region = open_after[np.searchsorted(notes.time_us[order], time_us, side="right")]
    return np.where((entries >= 0) & (time_us >= 0), region, none)


def _open_regions(notes: Annotations, order: list[int]) -> list[int]:
    """The innermost open region after each annotation, in the given order."""
    opened: list[int] = []
    count: dict[int, int] = {}
    after = []
    names, starts = notes.name.tolist(), notes.is_start.tolist()
    for index in order:
        name = names[index]
        if starts[index]:
            opened.append(name)
            count[name] = count.get(name, 0) + 1
        elif count.get(name, 0):
            count[name] -= 1
            del opened[len(opened) - 1 - opened[::-1].index(name)]  # regions of several threads need not nest
        after.append(opened[-1] if opened else OUTSIDE)
    return after
