"""The peak of a device and the blocks that are never freed, by line and by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from tracer.allocator.fragmentation import Fragmentation, fragmentation_after
from tracer.answers.rows import PeakRow
from tracer.arrays import Grouped, Ints, grouped, largest_first
from tracer.blocks.from_snapshot.kind_finder import ReplayedDevice
from tracer.blocks.from_snapshot.sites import NO_FRAMES, Site, Sites, pool_words, pools_of_graphs
from tracer.blocks.kinds import BEFORE_RECORDING, Evidence, Kind, kind_named
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import Annotations, DeviceState, Int32s
from tracer.snapshot.replay import BEFORE

IN_RECORDING: Final = "in the recording"


@dataclass(frozen=True, slots=True)
class SnapshotRow(PeakRow):
    """A row of a snapshot: blocks of one kind that one line allocated, and the bytes that they were asked for."""

    # The stack of the most bytes, innermost frame first, without unwinder, allocator and interpreter.
    stack: tuple[str, ...] = ()
    # The blocks divided by the first frame above the line in which their stacks differ; empty if none differs, or from
    # `group_lives`.
    callers: tuple[CallerShare, ...] = ()
    in_documents: ClassVar = (
        "bytes", "count", "kind", "evidence", "is_before_recording", "site", "stack", "callers"
    )  # fmt: skip

    @property
    def kind(self) -> Kind:
        """The kind of the blocks."""
        return Kind[self.category]

    @property
    def is_before_recording(self) -> bool:
        """True if the blocks were allocated before the first entry; False for a state without history."""
        return self.phase == BEFORE_RECORDING

    @property
    def site(self) -> Site:
        """The line to blame; of backward that of its operation of forward, where it is certain, and says so."""
        frame = BEFORE_RECORDING if self.is_before_recording and self.op == NO_FRAMES else self.op
        return Site(frame or "", self.file, self.line)

    @property
    def kind_words(self) -> str:
        """The kind for a table, as `parameter, before recording` where neither kind nor line say that."""
        says_before = self.kind is Kind.BEFORE_RECORDING or self.site.frame == BEFORE_RECORDING
        is_unsaid = self.is_before_recording and not says_before
        return f"{self.kind.words}, {BEFORE_RECORDING}" if is_unsaid else self.kind.words


def group_rows(device: ReplayedDevice, rows: Ints) -> tuple[SnapshotRow, ...]:
    """Gather rows by kind, line, and whether they were there before the recording; largest first."""
    members, keys, _ = _gathered(device, rows)
    groups = []
    for key, parts in zip(keys, members, strict=True):
        # A block of backward has the callers of its operation of forward.
        called = [(part.stack if part.forward < 0 else part.forward, part.bytes, part.count) for part in parts]
        groups.append(replace(_group(key, parts, device), callers=callers_of(called, device.sites)))
    return tuple(sorted(groups, key=lambda g: (-g.bytes, g.kind, g.site.frame, g.site.file or "", g.site.line or 0)))


def group_lives(device: ReplayedDevice, rows: Ints) -> tuple[tuple[SnapshotRow, ...], Ints]:
    """Gather rows as `group_rows` does, without callers; also return the index of each row's group."""
    members, keys, group_of_row = _gathered(device, rows)
    return largest_first([_group(key, mine, device) for key, mine in zip(keys, members, strict=True)], group_of_row)


def _gathered(
    device: ReplayedDevice, rows: Ints
) -> tuple[list[list[_StackPart]], Sequence[tuple[Kind, Site, bool]], Ints]:
    """Return the parts of each group, the groups' keys, and the index of each row's group."""
    lives, kinds = device.replay.lives, device.kinds
    columns = (
        lives.stack[rows],
        kinds.backward_lines.forward_stacks(rows),
        lives.begin[rows] == BEFORE,
        *kinds.kinds_and_evidence(rows),
    )
    by_stack = grouped(columns, lambda *values: values)
    sums = zip(by_stack.keys, by_stack.sums(lives.requested_bytes[rows]), by_stack.counts(), strict=True)
    parts = [_StackPart(size, count, *values) for values, size, count in sums]

    def key(number: int) -> tuple[Kind, Site, bool]:
        part = parts[number]
        return Kind(part.kind), device.sites.site_of_backward(part.stack, part.forward), part.is_before

    groups = grouped([np.arange(len(parts))], key)
    members: list[list[_StackPart]] = [[] for _ in groups.keys]
    for part, group in zip(parts, groups.of_row.tolist(), strict=True):
        members[group].append(part)
    return members, groups.keys, groups.of_row[by_stack.of_row]


@dataclass(frozen=True, slots=True)
class _StackPart:
    """Rows that share stack, kind and evidence, and of backward the stack of their operation of forward, else -1."""

    bytes: int
    count: int
    stack: int
    forward: int
    is_before: bool
    kind: int
    evidence: int


def _group(key: tuple[Kind, Site, bool], parts: list[_StackPart], device: ReplayedDevice) -> SnapshotRow:
    kind, site, is_before = key
    largest = max(parts, key=lambda part: part.bytes)
    return SnapshotRow(
        bytes=sum(part.bytes for part in parts),
        count=sum(part.count for part in parts),
        category=kind.name,
        torch_category=None,
        evidence=Evidence(largest.evidence).text,
        phase=(BEFORE_RECORDING if is_before else IN_RECORDING) if len(device.state.trace) else "not known",
        module=None,
        op=site.frame,
        file=site.file,
        line=site.line,
        stack=device.sites.readable(largest.stack),
    )


@dataclass(frozen=True, slots=True)
class CallerShare:
    """The blocks of a group that have one caller."""

    site: Site | None  # The caller's line; of blocks that have none, where others have one, None
    bytes: int  # As requested
    count: int


def callers_of(stacks: Sequence[tuple[int, int, int]], sites: Sites) -> tuple[CallerShare, ...]:
    """Divide blocks of one line by the first frame above it in which their stacks differ; largest first.

    Returns:
        Shares that sum to the blocks; none where nothing differs.
    """
    if len(stacks) < 2:
        return ()
    of_stack = [sites.callers(stack) for stack, _, _ in stacks]
    shortest, longest = min(map(len, of_stack)), max(map(len, of_stack))
    differing = (depth for depth in range(shortest) if len({callers[depth] for callers in of_stack}) > 1)
    depth = next(differing, shortest)
    if depth == longest:
        return ()
    sums: dict[Site | None, tuple[int, int]] = {}
    for callers, (_, size, count) in zip(of_stack, stacks, strict=True):
        site = callers[depth] if depth < len(callers) else None
        total, number = sums.get(site, (0, 0))
        sums[site] = total + size, number + count
    shares = (CallerShare(site, size, count) for site, (size, count) in sums.items())
    return tuple(sorted(shares, key=lambda share: (-share.bytes, str(share.site))))


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
    groups: tuple[SnapshotRow, ...]  # By line and kind; they sum to the requested bytes, like the two below
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
        groups=group_rows(device, rows),
        by_kind=_shares(grouped([kinds.of(rows)], lambda kind: Kind(kind).words), lives.requested_bytes[rows]),
        by_annotation=_by_annotation(device, rows),
        by_name=_by_name(device, rows, entry),
        by_stream=_by_stream(device, rows),
        fragmentation=fragmentation_after(state, replay, entry) if device.snapshot.has_allocator else None,
    )


def never_freed(device: ReplayedDevice) -> tuple[SnapshotRow, ...]:
    """Blocks that the recording allocated and did not free, by line and kind, largest first."""
    lives = device.replay.lives
    return group_rows(device, np.flatnonzero((lives.begin > BEFORE) & (lives.end == len(device.state.trace))))


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
