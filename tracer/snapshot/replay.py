"""Turns one device's trace into the lives of its blocks, backwards from the recorded end state.

Backwards, because the end state is complete and the beginning is not: a ring buffer loses its head and nobody records
from the start of the process. Allocator order is the truth: entries are matched by address and position, never by time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracer.arrays import Bools, ColumnTable, Ints, in_use
from tracer.block_sizes import recorded_divisions, round_sizes
from tracer.errors import SnapshotError
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import DeviceState, Int32s, StateBlocks, Trace
from tracer.snapshot.stacks import NO_STACK

BEFORE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Lives(ColumnTable):
    """Every block of memory that was in use at some moment of the recording [lives].

    Entry indices are positions in the device's trace of E entries.
    """

    addr: Ints
    requested_bytes: Ints  # What was asked for
    # What the allocator took: the block's size if it is in the end state, else the request, rounded.
    allocated_bytes: Ints
    begin: Ints  # The entry that made it; `BEFORE` (-1) if it was there before the first entry
    end: Ints  # The entry at which its memory was free again; E if it still is in use
    alloc_entry: Ints  # The `alloc` entry, or -1 if the recording has none
    free_entry: Ints  # The `free_requested` entry, or -1
    stack: Int32s  # The stack that allocated it; 0 if none is known

    def alive_after(self, entry: int) -> Ints:
        """Rows in use right after an entry; after -1 means at the start of the recording."""
        return np.flatnonzero((self.begin <= entry) & (self.end > entry))


@dataclass(frozen=True, slots=True)
class Oddities:
    """Counts of contradictions in a recording; all zero for a complete one."""

    # Allocations without a free that are not in the end state either; they count for no time.
    num_missing_frees: int = 0
    missing_free_bytes: int = 0
    num_missing_allocs: int = 0  # Blocks in use whose allocation must have followed a free but is not recorded
    num_size_mismatches: int = 0  # Allocations whose size is another one when freed or at the end; the later one counts
    has_no_allocs: bool = False  # The trace has frees and not one allocation (`skip_actions`)
    frees_by_request: bool = False  # The trace has no `free_completed`, so that `free_requested` had to stand for it
    num_unknown_actions: int = 0  # Entries with an action that this version does not know


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Memory in use on one device over its recording."""

    lives: Lives
    requested_bytes: Ints  # Bytes as requested: at index 0 before the first entry, at i + 1 after entry i [entries + 1]
    reserved_bytes: Ints  # Bytes reserved from the driver, likewise [entries + 1]
    oddities: Oddities  # What did not fit together
    # The entry after which the most requested bytes were in use, the first of equals, but for a failure, which is one
    # if as much was in use; -1 for the start.
    peak_entry: int


def replay(state: DeviceState, settings: Mapping[str, Any]) -> Replay:
    """Replay one device's recording.

    Raises:
        SnapshotError: The end state puts two live blocks at one address.
    """
    trace, blocks = state.trace, state.blocks
    live = _live_blocks_by_address(state)
    lives, oddities = _Matching(trace, blocks, live).lives(settings)
    requested_bytes = in_use(lives.requested_bytes, lives.begin, lives.end, len(trace))
    failures = trace.where(Action.OOM)
    failures = failures[requested_bytes[failures + 1] == requested_bytes.max()]
    return Replay(
        lives=lives,
        requested_bytes=requested_bytes,
        reserved_bytes=_reserved_curve(state),
        oddities=oddities,
        peak_entry=int(failures[-1]) if len(failures) else int(np.argmax(requested_bytes)) - 1,
    )


def as_it_failed(state: DeviceState, lives: Lives) -> tuple[DeviceState, Lives]:
    """The recording as it was when the last request failed, if nothing was asked for behind it; else as it is.

    The exception frees on its way what the program still needed, which says nothing of how long that would have lived.
    """
    failures = state.trace.where(Action.OOM)
    if not len(failures) or (lives.begin > failures[-1]).any():
        return state, lives
    trace, outlives = state.trace.take(slice(int(failures[-1]) + 1)), lives.end > failures[-1]
    notes, failed_us = state.annotations, trace.time_us[-1]
    said = np.where(notes.is_start, notes.time_us <= failed_us, notes.time_us < failed_us)
    end = np.where(outlives, len(trace), lives.end)
    free_entry = np.where(lives.free_entry > failures[-1], -1, lives.free_entry)
    return replace(state, trace=trace, annotations=notes.take(said)), replace(lives, end=end, free_entry=free_entry)


def _live_blocks_by_address(state: DeviceState) -> Ints:
    blocks = state.blocks
    rows = np.flatnonzero(blocks.is_live)
    rows = rows[np.argsort(blocks.address[rows], kind="stable")]
    address = blocks.address[rows]
    twice = np.flatnonzero(address[1:] == address[:-1])
    if len(twice):
        raise SnapshotError(
            f"Device {state.device} has two live blocks at address {int(address[twice[0]]):#x}.",
            hint="The file is damaged; take the snapshot again.",
        )
    return rows


class _Matching:
    """The allocations and frees of a trace, ordered by address and then by position, next to the end state.

    In that order each block's history is a run of rows, and what follows a row decides what became of the block.
    """

    def __init__(self, trace: Trace, blocks: StateBlocks, live: Ints) -> None:
        self._trace, self._blocks, self._live = trace, blocks, live
        # `free_completed` frees memory, or `free_requested` if the former was not recorded.
        has_completed = (trace.action == Action.FREE_COMPLETED).any()
        self.frees_by_request = bool((trace.action == Action.FREE_REQUESTED).any() and not has_completed)
        freeing = Action.FREE_REQUESTED if self.frees_by_request else Action.FREE_COMPLETED
        entry = trace.where(Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
        entry = entry[np.argsort(trace.addr[entry], kind="stable")]
        requests = self._preceding_requests(entry, freeing)
        is_kept = (trace.action[entry] == Action.ALLOC) | (trace.action[entry] == freeing)
        self.entry, self.free_entry = entry[is_kept], requests[is_kept]
        self.addr = trace.addr[self.entry]
        self.is_alloc = trace.action[self.entry] == Action.ALLOC
        same = self.addr[1:] == self.addr[:-1]
        self.has_next = np.append(same, False)[: len(self.addr)]
        self.has_previous = np.append(False, same)[: len(self.addr)]

    def _preceding_requests(self, entry: Ints, freeing: Action) -> Ints:
        """The `free_requested` entry of each row, right before it at its address, or the row itself."""
        if freeing == Action.FREE_REQUESTED:
            return entry
        trace = self._trace
        follows = np.zeros(len(entry), dtype=np.bool_)
        follows[1:] = (trace.action[entry[:-1]] == Action.FREE_REQUESTED) & (
            trace.addr[entry[1:]] == trace.addr[entry[:-1]]
        )
        return np.where(follows, np.roll(entry, 1), -1)

    def lives(self, settings: Mapping[str, Any]) -> tuple[Lives, Oddities]:
        is_free = ~self.is_alloc
        next_is_free = self.has_next & np.append(is_free[1:], False)[: len(is_free)]
        previous_is_alloc = self.has_previous & np.append(False, self.is_alloc[:-1])[: len(is_free)]
        ends_live, live_row = self._in_end_state()
        freed = np.flatnonzero(self.is_alloc & next_is_free)
        surviving = np.flatnonzero(self.is_alloc & ~self.has_next & ends_live)
        unborn = np.flatnonzero(is_free & ~previous_is_alloc)
        reborn = np.flatnonzero(is_free & ~self.has_next & ends_live)
        lost = self.is_alloc & ~next_is_free & ~(~self.has_next & ends_live)
        untouched = np.setdiff1d(self._live, live_row[ends_live & ~self.has_next])
        parts = [
            self._freed(freed),
            self._still_live(surviving, live_row[surviving]),
            self._freed_unborn(unborn),
            self._reborn(reborn, live_row[reborn]),
            self._always_live(untouched),
        ]
        table = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        table["allocated_bytes"] = self._allocated(table, settings)
        del table["block"]
        return Lives(**table), self._oddities(lost, unborn, reborn, freed, surviving, live_row)

    def _in_end_state(self) -> tuple[Bools, Ints]:
        """Find the rows whose address is in use at the end, and the block that uses it."""
        live_addr = self._blocks.address[self._live]
        if not len(live_addr):
            return np.zeros(len(self.addr), dtype=np.bool_), np.full(len(self.addr), -1)
        at = np.minimum(np.searchsorted(live_addr, self.addr), len(live_addr) - 1)
        is_live = live_addr[at] == self.addr
        return is_live, np.where(is_live, self._live[at], -1)

    def _rows(
        self,
        addr: Ints,
        *,
        size: Ints,
        begin: Ints | int,
        end: Ints | int,
        alloc: Ints | int = -1,
        free: Ints | int = -1,
        stack: Int32s | int = NO_STACK,
        block: Ints | int = -1,
    ) -> dict[str, Any]:
        def column(value: Any, kind: type[np.generic] = np.int64) -> Any:
            return np.broadcast_to(np.asarray(value, dtype=kind), len(addr))

        return {
            "addr": addr,
            "requested_bytes": size,
            "begin": column(begin),
            "end": column(end),
            "alloc_entry": column(alloc),
            "free_entry": column(free),
            "stack": column(stack, np.int32),
            "block": column(block),
        }

    def _freed(self, rows: Ints) -> dict[str, Any]:
        """Allocated and freed in the recording."""
        trace, born, freed = self._trace, self.entry[rows], self.entry[rows + 1]
        free, stack = self.free_entry[rows + 1], trace.stack[born]
        return self._rows(
            self.addr[rows], size=trace.size[freed], begin=born, end=freed, alloc=born, free=free, stack=stack
        )

    def _still_live(self, rows: Ints, block: Ints) -> dict[str, Any]:
        """Allocated in the recording and in use at its end."""
        blocks, born = self._blocks, self.entry[rows]
        stack = np.where(self._trace.stack[born] == NO_STACK, blocks.stack[block], self._trace.stack[born])
        size, end = blocks.requested_size[block], len(self._trace)
        return self._rows(self.addr[rows], size=size, begin=born, end=end, alloc=born, stack=stack, block=block)

    def _freed_unborn(self, rows: Ints) -> dict[str, Any]:
        """Freed in the recording without an allocation: there before, or since an earlier free of the same address."""
        freed = self.entry[rows]
        begin = np.where(self.has_previous[rows], self.entry[rows - 1], BEFORE)
        size, free = self._trace.size[freed], self.free_entry[rows]
        return self._rows(self.addr[rows], size=size, begin=begin, end=freed, free=free)

    def _reborn(self, rows: Ints, block: Ints) -> dict[str, Any]:
        """Lives whose allocation is not recorded: in use at the end, although the last entry is a free."""
        size, stack = self._blocks.requested_size[block], self._blocks.stack[block]
        return self._rows(
            self.addr[rows], size=size, begin=self.entry[rows], end=len(self._trace), stack=stack, block=block
        )

    def _always_live(self, block: Ints) -> dict[str, Any]:
        """Lives without any entry: in use at the end and allocated before the recording."""
        blocks = self._blocks
        size, stack = blocks.requested_size[block], blocks.stack[block]
        addr = blocks.address[block]
        return self._rows(addr, size=size, begin=BEFORE, end=len(self._trace), stack=stack, block=block)

    def _allocated(self, table: Mapping[str, Any], settings: Mapping[str, Any]) -> Ints:
        rounded = round_sizes(table["requested_bytes"], recorded_divisions(settings))
        known = table["block"] >= 0
        rounded[known] = self._blocks.size[table["block"][known]]
        return rounded

    def _oddities(
        self, lost: Bools, unborn: Ints, reborn: Ints, freed: Ints, surviving: Ints, live_row: Ints
    ) -> Oddities:
        trace = self._trace
        size = trace.size[self.entry]
        mismatched = np.count_nonzero(size[freed] != size[freed + 1]) + np.count_nonzero(
            size[surviving] != self._blocks.requested_size[live_row[surviving]]
        )
        return Oddities(
            num_missing_frees=int(np.count_nonzero(lost)),
            missing_free_bytes=int(size[lost].sum()),
            num_missing_allocs=int(np.count_nonzero(self.has_previous[unborn])) + len(reborn),
            num_size_mismatches=int(mismatched),
            has_no_allocs=bool(len(self.entry)) and not self.is_alloc.any(),
            frees_by_request=self.frees_by_request,
            num_unknown_actions=int(np.count_nonzero(trace.action == Action.UNKNOWN)),
        )


def _reserved_curve(state: DeviceState) -> Ints:
    """Reserved bytes at the start and after each entry, walked back from the segments of the end state."""
    trace = state.trace
    change = np.zeros(len(trace) + 1, dtype=np.int64)
    grown = trace.where(Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
    shrunk = trace.where(Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
    change[grown + 1] = trace.size[grown]
    change[shrunk + 1] = -trace.size[shrunk]
    change[0] = state.segments.total_size.sum() - change.sum()
    return np.cumsum(change, out=change)
