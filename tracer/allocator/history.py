"""The requests of a recording in order, with the allocator's answers, and the columns that a replay of them needs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tracer.allocator.blocks import DEFAULT_POOL, PoolId
from tracer.arrays import Bools, Ints
from tracer.snapshot.actions import Action, BlockState
from tracer.snapshot.columns import DeviceState, Snapshot
from tracer.snapshot.replay import BEFORE, Lives, Replay

RELEASES = ("segment_free", "segment_unmap")
BEFORE_THE_RECORDING = -1
_SEGMENT_ACTIONS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)


class Op(IntEnum):
    """The operation of one step of a history."""

    ALLOC = 0
    FREE = 1  # Request and completion of a free with nothing between them
    REQUEST_FREE = 2
    COMPLETE_FREE = 3
    SEGMENT = 4  # The allocator took something from the driver, or gave it back
    OOM = 5  # A request that failed
    RELEASE = 6  # The program emptied the cache


class SegmentEvent(NamedTuple):
    """A segment that the recorded allocator took from the driver or released."""

    action: str
    address: int
    size: int
    stream: int
    pool: PoolId

    @property
    def is_release(self) -> bool:
        """True if the segment was released."""
        return self.action in RELEASES


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """One device's recording, as operations on blocks' lives."""

    lives: Lives  # The lives; requested sizes, addresses and times
    stream: Ints  # Stream of each life [lives]
    pool: Ints  # Pool of each life, as an index into `pools` [lives]
    waits_at_start: Bools  # Whether its free was requested before the first entry and is not complete then [lives]
    pools: tuple[PoolId, ...]  # The pools' numbers; the default one first
    code: list[int]  # Codes of `Op`, in order [operations]
    operand: list[int]  # The life, the segment event or the failed request that each operation is about [operations]
    entry: Ints  # The trace entry of each operation, ascending [operations]
    segment_events: tuple[SegmentEvent, ...]  # What segment operations refer to
    segment_entry: Ints  # Their trace entries [segment events]
    end_pools: tuple[PoolId, ...]  # Pool of each segment of the end state [segments]
    failed: tuple[tuple[int, int], ...]  # Rounded size and stream of the requests that failed
    num_entries: int
    num_unknown_actions: int  # Entries that say nothing to this version, and are left out

    @property
    def first_lives(self) -> Ints:
        """Lives that were there before the first entry, by address."""
        rows = np.flatnonzero(self.lives.begin == BEFORE)
        return rows[np.argsort(self.lives.addr[rows], kind="stable")]

    @property
    def num_allocations(self) -> int:
        """Allocations that the recording has."""
        return self.code.count(Op.ALLOC)

    @property
    def ends_by_failure(self) -> bool:
        """True if nothing was allocated after the last failed request: the program would have asked for more."""
        made = (code for code in reversed(self.code) if code in (Op.ALLOC, Op.OOM))
        return next(made, Op.ALLOC) == Op.OOM


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests of a history, without the decisions of its allocator."""

    history: History
    code: Ints  # Codes of `Op`: requests, frees and emptied caches [operations]
    operand: Ints  # As in the history [operations]
    entry: Ints  # [operations]

    @cached_property
    def operations(self) -> tuple[list[int], list[int]]:
        """Codes and operands as lists, which Python reads faster than arrays."""
        return self.code.tolist(), self.operand.tolist()

    def entry_at(self, position: int) -> int:
        """The trace entry of an operation; that of a block from before the recording has position -1."""
        return BEFORE_THE_RECORDING if position < 0 else int(self.entry[position])


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that could not be served."""

    entry: int  # Its trace entry; `BEFORE_THE_RECORDING` (-1) if it was for a block that was there at the start
    size: int  # The rounded request
    reserved_bytes: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that a history needs under some settings."""

    reserved_peak_bytes: int
    allocated_peak_bytes: int  # The most that was in use, rounded
    num_driver_calls: int  # Segments and pages taken and given back, which is what other settings cost in time
    num_retries: int  # How often the cache was emptied for a request
    failure: FailedRequest | None  # The first request that could not be served; None if all could
    # Trace entries of the requests that failed in the recording and could not be served here either, where the replay
    # went on after them.
    unserved: tuple[int, ...] = ()
    wanted_bytes: int = 0  # In use, rounded, with the last request that failed in the recording; 0 where none did


def read_history(snapshot: Snapshot, state: DeviceState, replay: Replay) -> History:
    """Turn one device's recording into operations."""
    trace, lives = state.trace, replay.lives
    segment_entries, oom_entries = trace.where(*_SEGMENT_ACTIONS), trace.where(Action.OOM)
    pools = _Pools(snapshot, state)
    waiting, last_request = _waiting(state, lives)
    operations = np.concatenate(
        [
            _life_operations(lives, waiting, last_request, len(trace)),
            _rows(segment_entries, Op.SEGMENT, np.arange(len(segment_entries))),
            _rows(oom_entries, Op.OOM, np.arange(len(oom_entries))),
        ]
    )
    # Where a block is reborn (its allocation is not recorded) it shares its entry with the free before it.
    operations = operations[np.lexsort((operations[:, 1] == Op.ALLOC, operations[:, 0]))]
    stream, pool = _homes(state, lives, pools)
    return History(
        lives=lives,
        stream=stream,
        pool=pool,
        waits_at_start=waiting,
        pools=tuple(pools.numbers),
        code=operations[:, 1].tolist(),
        operand=operations[:, 2].tolist(),
        entry=operations[:, 0],
        segment_events=_segment_events(state, segment_entries, pools),
        segment_entry=segment_entries,
        end_pools=tuple(pools.numbers[index] for index in pools.of_segment.tolist()),
        failed=tuple(zip(trace.size[oom_entries].tolist(), trace.stream[oom_entries].tolist(), strict=True)),
        num_entries=len(trace),
        num_unknown_actions=replay.oddities.num_unknown_actions,
    )


def pool_numbers(snapshot: Snapshot, state: DeviceState) -> tuple[PoolId, ...]:
    """The pool of each segment of the end state [segments]."""
    pools = _Pools(snapshot, state)
    return tuple(pools.numbers[index] for index in pools.of_segment.tolist())


def _rows(entry: Ints, code: Op, operand: Ints) -> Ints:
    return np.stack([entry, np.full(len(entry), int(code)), operand], axis=1).astype(np.int64)


def _waiting(state: DeviceState, lives: Lives) -> tuple[Bools, Ints]:
    """Find the lives that wait for another stream at the start, and the request of those that do at the end.

    Returns:
        Two columns [lives]; the second is -1 for all that are not pending in the end state, or were at the start.
    """
    trace, blocks = state.trace, state.blocks
    requests = trace.where(Action.FREE_REQUESTED)
    pending = blocks.address[blocks.state == BlockState.ACTIVE_PENDING_FREE]
    pending_at_end = np.flatnonzero((lives.end == len(trace)) & np.isin(lives.addr, pending))
    latest = dict(zip(trace.addr[requests].tolist(), requests.tolist(), strict=True)) if len(pending_at_end) else {}
    last_request = np.full(len(lives), -1, np.int64)
    last_request[pending_at_end] = [latest.get(address, -1) for address in lives.addr[pending_at_end].tolist()]
    last_request[last_request <= lives.begin] = -1
    freed = lives.end < len(trace)
    freed[pending_at_end] = True
    is_waiting = (lives.begin == BEFORE) & freed & (lives.free_entry < 0) & (last_request < 0)
    return is_waiting & (len(requests) > 0), last_request


def _life_operations(lives: Lives, waiting: Bools, last_request: Ints, num_entries: int) -> Ints:
    """Allocations and frees; a free is in two steps only where something lies between them."""
    born, gone = np.flatnonzero(lives.begin != BEFORE), np.flatnonzero(lives.end < num_entries)
    request, end = lives.free_entry[gone], lives.end[gone]
    in_two = ((request >= 0) & (request < end - 1)) | waiting[gone]
    asked = in_two & (request >= 0)
    asked_at_end = np.flatnonzero(last_request >= 0)
    return np.concatenate(
        [
            _rows(lives.begin[born], Op.ALLOC, born),
            _rows(end[~in_two], Op.FREE, gone[~in_two]),
            _rows(request[asked], Op.REQUEST_FREE, gone[asked]),
            _rows(end[in_two], Op.COMPLETE_FREE, gone[in_two]),
            _rows(last_request[asked_at_end], Op.REQUEST_FREE, asked_at_end),
        ]
    )


class _Pools:
    """The private pools of a recording, and where they are told of.

    Attributes:
        numbers: The pools' numbers; the default one first.
        of_entry: The pool of each trace entry, as an index [entries].
        of_segment: The pool of each segment of the end state [segments].
    """

    def __init__(self, snapshot: Snapshot, state: DeviceState) -> None:
        self.numbers = [DEFAULT_POOL]
        index_of_text = {-1: 0}
        for text in np.unique(np.concatenate([state.trace.pool, state.segments.pool])).tolist():
            if text >= 0:
                index_of_text[text] = len(self.numbers)
                self.numbers.append(_pool_number(snapshot.text(text), len(self.numbers)))
        self.of_segment = np.array([index_of_text[text] for text in state.segments.pool.tolist()], np.int64)
        self.of_entry = np.zeros(len(state.trace), np.int64)
        if len(self.numbers) > 1:
            self.of_entry[:] = [index_of_text[text] for text in state.trace.pool.tolist()]
            if not self.of_entry.any():
                # Older entries did not name their pool: it is that of the segment at the end, once that was there.
                trace = state.trace
                at = segment_of(state, trace.addr)
                inside = at >= 0
                self.of_entry[inside] = self.of_segment[at[inside]]
                for entry in trace.where(Action.SEGMENT_FREE).tolist():
                    self.of_entry[:entry][at[:entry] == at[entry]] = 0


def _pool_number(text: str, place: int) -> PoolId:
    """`0,3` as numbers; what a later torch may write instead, by its place."""
    first, _, second = text.partition(",")
    return (int(first), int(second)) if first.isdecimal() and second.isdecimal() else (-1, place)


def segment_of(state: DeviceState, address: Ints) -> Ints:
    """The segment of the end state that each address lies in, or -1.

    Args:
        address: Addresses in any order; the result is as long.
    """
    segments = state.segments
    if not len(segments):
        return np.full(len(address), -1)
    order = np.argsort(segments.address, kind="stable")
    at = order[np.maximum(np.searchsorted(segments.address[order], address, side="right") - 1, 0)]
    inside = (address >= segments.address[at]) & (address < segments.address[at] + segments.total_size[at])
    return np.where(inside, at, -1)


def _homes(state: DeviceState, lives: Lives, pools: _Pools) -> tuple[Ints, Ints]:
    """Stream and pool of each life: as an entry of its says, or else its segment in the end state."""
    trace = state.trace
    entry = np.where(lives.alloc_entry >= 0, lives.alloc_entry, np.minimum(lives.end, len(trace) - 1))
    stream, pool = trace.stream[entry], pools.of_entry[entry]
    silent = np.flatnonzero((lives.alloc_entry < 0) & (lives.end >= len(trace)))
    at = segment_of(state, lives.addr[silent])
    known, at = silent[at >= 0], at[at >= 0]
    stream[known], pool[known] = state.segments.stream[at], pools.of_segment[at]
    return stream, pool


def _segment_events(state: DeviceState, entries: Ints, pools: _Pools) -> tuple[SegmentEvent, ...]:
    trace = state.trace
    actions = [Action(code).name.lower() for code in trace.action[entries].tolist()]
    numbers = [pools.numbers[index] for index in pools.of_entry[entries].tolist()]
    columns = (actions, trace.addr[entries].tolist(), trace.size[entries].tolist(), trace.stream[entries].tolist())
    return tuple(map(SegmentEvent, *columns, numbers))
