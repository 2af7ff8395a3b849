"""The caching allocator's own history beside the profiler's recording: which entry made which block.

Each knows what the other does not. The profiler knows operators, modules and tensors; the history what was requested
before rounding, the segments, and blocks from before the recording. Both saw the same allocations in the same order,
so they are joined by device, address and order, never by time: a third of all entries share their microsecond.

Shapes: B blocks of `BlockLifetimes`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracer.allocator.fragmentation import AddressRanges, Fragmentation, address_ranges, fragmentation_after
from tracer.arrays import Bools, Int, Interned, Ints, PerBlock, Rows
from tracer.blocks.from_recording.block_lifetimes import BlockLifetimes
from tracer.blocks.from_snapshot.sites import Site, Sites
from tracer.blocks.kinds import Evidence, Kind
from tracer.blocks.table import BEFORE as BEFORE_RECORDING
from tracer.blocks.table import NONE, Blocks, numbered
from tracer.snapshot.actions import Action, BlockState
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import BEFORE, Replay
from tracer.snapshot.replay import replay as replay_device


@dataclass(frozen=True, slots=True, eq=False)
class JoinedHistory:
    """A device's allocator history, with its entries found in the recording."""

    state: DeviceState
    replay: Replay  # Its replay, with the profiler's exact sizes for the blocks that are in both
    sites: Sites  # The lines behind the snapshot's stacks
    entry: PerBlock[Int]  # [B] Entry that made each block of `BlockLifetimes`, or -1
    texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class InUse:
    """Blocks that the allocator had handed out at one moment."""

    blocks: Blocks  # Those of the recording, with the allocator's sizes, and behind these what the recording never saw
    pending_bytes: int  # Freed by the program, but another stream may still be using it: in no row
    memory: Fragmentation  # Reserved memory and the holes in it
    asleep_bytes: int  # In blocks that an engine which sleeps has unmapped: in no row


def join_history(snapshot: Snapshot, device: str, lifetimes: BlockLifetimes) -> JoinedHistory | None:
    """Find a recording's allocations in a snapshot that was dumped right after it.

    Returns:
        None if the snapshot has nothing of the device.
    """
    index = device.rpartition(":")[2]
    state = next((state for state in snapshot.devices if str(state.device) == index), None)
    if state is None or not len(state.trace):
        return None
    trace = state.trace
    alloc_entries = trace.where(Action.ALLOC)
    entry = join_entries(alloc_entries, trace.addr[alloc_entries], trace.size[alloc_entries], lifetimes)
    replayed = replay_device(state, snapshot.settings)
    lives = replayed.lives
    block_of_entry = np.full(len(trace), -1, np.int64)
    joined = np.flatnonzero(entry >= 0)
    block_of_entry[entry[joined]] = joined
    block = np.where(lives.alloc_entry >= 0, block_of_entry[lives.alloc_entry], -1)
    exact = np.where(block >= 0, lifetimes.size_bytes[block], lives.allocated_bytes)
    return JoinedHistory(
        state,
        replace(replayed, lives=replace(lives, allocated_bytes=exact)),
        Sites(snapshot.stacks),
        entry,
        snapshot.texts,
    )


def join_entries(entry: Ints, address: Ints, size_bytes: Ints, lifetimes: BlockLifetimes) -> PerBlock[Int]:
    """Find each block's allocation among a history's.

    The history begins before the profiler does and both end together, so that the last allocation of an address is the
    same in both, and the one before it, and so on; the history's surplus is at its head. A pair in which more was
    requested than the block holds is none.

    Args:
        entry: Numbers of the history's allocations, ascending.
        size_bytes: Bytes of the same blocks, as requested.

    Returns:
        [B] an entry for each block, or -1.
    """
    entry_of_block = np.full(len(lifetimes.address), -1, np.int64)
    blocks = np.flatnonzero(lifetimes.allocation >= 0)
    blocks = blocks[np.argsort(lifetimes.made_at[blocks], kind="stable")]
    at, row = pairs_from_end(address, lifetimes.address[blocks])
    fits = size_bytes[at] <= lifetimes.size_bytes[blocks[row]]
    entry_of_block[blocks[row[fits]]] = entry[at[fits]]
    return entry_of_block


def pairs_from_end(address: Ints, other: Ints) -> tuple[Rows, Rows]:
    """Pair equal addresses of two lists that end at the same moment: the last of each, the one before it, ...

    Returns:
        Positions in the first one, and as many in the second one.
    """
    _, number = np.unique(np.concatenate([address, other]), return_inverse=True)
    theirs, ours = np.split(number.reshape(-1), [len(address)])
    width = max(len(theirs), len(ours), 1)
    _, at, row = np.intersect1d(
        theirs * width + _rank_from_end(theirs), ours * width + _rank_from_end(ours), return_indices=True
    )
    return at, row


def _rank_from_end(values: Ints) -> Ints:
    """Number of times that each value comes again behind its row."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    last = np.searchsorted(ordered, ordered, side="right") - 1
    rank = np.empty(len(values), np.int64)
    rank[order] = last - np.arange(len(values))
    return rank


def in_use_at(history: JoinedHistory, lifetimes: BlockLifetimes, blocks: Blocks, position: int) -> InUse | None:
    """Blocks in use right after an event of the recording, as the allocator's history has them.

    Returns:
        None if the history does not reach back to that event.
    """
    maker = np.flatnonzero((lifetimes.made_at == position) & (lifetimes.allocation >= 0) & (history.entry >= 0))
    return in_use_after(history, lifetimes, blocks, int(history.entry[maker[0]]), position) if len(maker) else None


def in_use_after(history: JoinedHistory, lifetimes: BlockLifetimes, blocks: Blocks, entry: int, position: int) -> InUse:
    """Blocks in use right after an entry of the history.

    Args:
        position: Position in `BlockLifetimes.events` of the last allocation until then.
    """
    lives = history.replay.lives
    alive_rows = lives.alive_after(entry)
    is_pending = _pending(history, alive_rows, entry)
    is_asleep = lifetimes.asleep.have(lives.addr[alive_rows], position) & ~is_pending
    rows = alive_rows[~is_pending & ~is_asleep]
    alive = lifetimes.counted_at(position)
    by_entry = {
        alloc_entry: row
        for row, alloc_entry in zip(alive.tolist(), history.entry[alive].tolist(), strict=True)
        if alloc_entry >= 0
    }
    by_address = {int(lifetimes.address[row]): row for row in alive.tolist() if history.entry[row] < 0}
    pairs = zip(lives.alloc_entry[rows].tolist(), lives.addr[rows].tolist(), strict=True)
    block = np.array([by_entry.get(made_by, by_address.get(address, -1)) for made_by, address in pairs], np.int64)
    return InUse(
        _as_in_history(blocks, block, history, rows, num_events=len(lifetimes.events)),
        pending_bytes=int(lives.allocated_bytes[alive_rows[is_pending]].sum()),
        memory=fragmentation_after(history.state, history.replay, entry),
        asleep_bytes=int(lives.allocated_bytes[alive_rows[is_asleep]].sum()),
    )


def _as_in_history(blocks: Blocks, block: Ints, history: JoinedHistory, rows: Rows, *, num_events: int) -> Blocks:
    """Blocks in use with sizes as the allocator has them, and behind these what the recording never saw.

    Args:
        block: Rows of `blocks`, -1 for what the recording never saw, for each of `rows` of the history.
    """
    lives, seen = history.replay.lives, block >= 0
    # The history has the requested size of a block from before the recording. The observed size may be larger, if the
    # rest of a piece was too little to split off, or smaller, as a tensor may span less than its block.
    observed = np.where(seen, blocks.size_bytes[block], 0)
    size_bytes, requested_bytes = np.maximum(lives.allocated_bytes[rows], observed), lives.requested_bytes[rows]
    values = Interned((value, number) for number, value in enumerate(blocks.values))

    def place(stack: int) -> Site | None:
        site = history.sites.site(stack)
        return None if site.file is None else Site("", site.file, site.line)

    # Blocks from before the recording are known by their tensors: they lack a line, and a tensor may be smaller.
    line = numbered(values, [lives.stack[rows].astype(np.int64)], place)
    known = blocks.take(block[seen])
    known = replace(
        known,
        values=tuple(values),
        size_bytes=size_bytes[seen],
        allocated_bytes=size_bytes[seen],
        requested_bytes=requested_bytes[seen],
        place=np.where((known.row < 0) & (known.place < 0), line[seen], known.place),
    )
    # A block that only the allocator's history has was allocated before the recording.
    usual = {
        "kind": Kind.BEFORE_RECORDING, "evidence": Evidence.HISTORY, "phase": BEFORE_RECORDING, "freed_at": num_events
    }  # fmt: skip
    none = np.full(int((~seen).sum()), NONE, np.int64)
    columns: dict[str, Any] = {name: np.full_like(none, int(usual.get(name, NONE))) for name in Blocks.names()}
    columns |= {"size_bytes": size_bytes[~seen], "allocated_bytes": size_bytes[~seen]}
    columns |= {"requested_bytes": requested_bytes[~seen], "address": lives.addr[rows][~seen], "place": line[~seen]}
    return known.followed_by(replace(known, **columns, said=dict.fromkeys(known.said, none)))


def last_events(history: JoinedHistory, lifetimes: BlockLifetimes, entry: int) -> tuple[int, int]:
    """Positions in `BlockLifetimes.events` of the last allocation and the last event until an entry; 0 for none."""
    lives = history.replay.lives
    freed_after = np.full(len(history.state.trace) + 1, len(history.state.trace), np.int64)
    freed_after[lives.alloc_entry[lives.alloc_entry >= 0]] = lives.end[lives.alloc_entry >= 0]
    is_made = (history.entry >= 0) & (history.entry <= entry)
    made = int(lifetimes.made_at[is_made].max(initial=0))
    is_freed = is_made & (freed_after[history.entry] <= entry)
    freed = int(lifetimes.freed_at[is_freed].max(initial=0))  # behind the events where the recording ended before it
    return made, max(made, min(freed, len(lifetimes.events) - 1))


def _pending(history: JoinedHistory, rows: Rows, entry: int) -> Bools:
    """Mark blocks that the program had freed by then, although another stream still used their memory.

    The allocator's counter of allocated bytes, which the profiler reports, drops when the program frees.
    """
    trace, blocks, lives = history.state.trace, history.state.blocks, history.replay.lives
    free = trace.where(Action.FREE_REQUESTED)
    address, number = np.unique(np.concatenate([trace.addr[free], lives.addr[rows]]), return_inverse=True)
    free_of, life_of = np.split(number.reshape(-1), [len(free)])
    last = np.full((2, len(address)), -1, np.int64)
    np.maximum.at(last[0], free_of[free <= entry], free[free <= entry])
    np.maximum.at(last[1], free_of, free)
    begin = lives.begin[rows]
    # Freed before the history begins: the block waits at its end, or its wait ends, and no entry says since when.
    waiting = np.isin(lives.addr[rows], blocks.address[blocks.state == BlockState.ACTIVE_PENDING_FREE])
    waiting &= (lives.end[rows] == len(trace)) & (last[1][life_of] <= begin)
    waiting |= (begin == BEFORE) & (lives.end[rows] < len(trace)) & (lives.free_entry[rows] < 0)
    return np.asarray((last[0][life_of] > begin) | waiting, np.bool_)


def reserved_ranges(history: JoinedHistory, lifetimes: BlockLifetimes) -> AddressRanges | None:
    """Follow the segments over the events of a recording; None if the history has none of these.

    Blocks that are both in the history and in the recording say which entry is which event; a segment that an entry
    between two of them reserved or gave back is there, or no longer there, from the later one on.
    """
    position, entry = _both(history, lifetimes)
    if not len(position):
        return None
    ranges = address_ranges(history.state)
    at = np.append(position, len(lifetimes.events))
    made_at = at[np.searchsorted(entry, ranges.begin, side="left")]
    return replace(
        ranges,
        begin=np.where(ranges.begin < entry[0], BEFORE, made_at),
        end=at[np.searchsorted(entry, ranges.end, side="left")],
        known_from=int(position[0]),
    )


def _both(history: JoinedHistory, lifetimes: BlockLifetimes) -> tuple[Ints, Ints]:
    """Events that are entries too, in order, and the entries."""
    trace, num_events = history.state.trace, len(lifetimes.events)
    entry_of = np.full(num_events, -1, np.int64)
    joined = history.entry >= 0
    entry_of[lifetimes.made_at[joined]] = history.entry[joined]
    freed = np.flatnonzero((lifetimes.freed_at < num_events) & ~lifetimes.died_unseen)
    freed = freed[np.argsort(lifetimes.freed_at[freed], kind="stable")]
    frees = trace.where(Action.FREE_REQUESTED)
    at, row = pairs_from_end(trace.addr[frees], lifetimes.address[freed])
    entry_of[lifetimes.freed_at[freed[row]]] = frees[at]
    position = np.flatnonzero(entry_of >= 0)
    return position, np.maximum.accumulate(entry_of[position])
