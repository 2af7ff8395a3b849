"""Recordings as they would be if they had been taken earlier: at an out of memory, or in the middle of a step."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TypeVar

import numpy as np

from tracer.arrays import Bools
from tracer.snapshot.actions import BlockState
from tracer.snapshot.columns import Annotations, DeviceState, Segments, Snapshot, StateBlocks, Trace
from tracer.snapshot.replay import replay

Table = TypeVar("Table", Trace, Annotations)


def cut(snapshot: Snapshot, entry: int, *, begin: int = 0) -> Snapshot:
    """The snapshot as taken right before an entry, of each device that has so many; by a history that began later.

    Its segments hold the blocks and nothing else.

    Args:
        snapshot: The whole.
        entry: How many entries of it there had been.
        begin: How many of them the ring buffer has lost.
    """
    devices = tuple(_cut(state, snapshot, begin, entry) for state in snapshot.devices)
    return replace(snapshot, devices=devices)


def _cut(state: DeviceState, snapshot: Snapshot, begin: int, entry: int) -> DeviceState:
    lives = replay(state, snapshot.settings).lives
    rows = lives.alive_after(entry - 1)
    rows = rows[np.argsort(lives.addr[rows])]
    size = lives.allocated_bytes[rows]
    no = np.zeros(len(rows), dtype=np.bool_)
    # A block that was there before has its stack in the end state alone; one of the recording has it there too.
    stack = lives.stack[rows]
    address, stream = lives.addr[rows], np.zeros(len(rows), dtype=np.int64)
    trace = _taken(state.trace, np.arange(len(state.trace)) < entry)
    is_over = state.annotations.time_us > (trace.time_us[-1] if len(trace) else -1)
    return replace(
        state,
        trace=_taken(trace, np.arange(len(trace)) >= begin),
        blocks=StateBlocks(
            address=address,
            size=size,
            requested_size=lives.requested_bytes[rows],
            state=np.full(len(rows), BlockState.ACTIVE_ALLOCATED, dtype=np.uint8),
            stack=stack,
            stream=stream,
        ),
        segments=Segments(
            address=address,
            total_size=size,
            stream=stream,
            is_small=no,
            is_expandable=no,
            pool=np.full(len(rows), -1, dtype=np.int32),
        ),
        annotations=_taken(state.annotations, ~is_over),
    )


def _taken(table: Table, keep: Bools) -> Table:
    return replace(table, **{column.name: getattr(table, column.name)[keep] for column in fields(table)})
