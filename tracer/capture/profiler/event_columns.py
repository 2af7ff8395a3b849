"""Columns that one walk over the event tree fills row by row, and turns into those of a `Recording` at the end."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.arrays import Interned, Ints
from tracer.capture.profiler.inline_operators import TextOf, place_inline_operators
from tracer.capture.recording import Allocations, Calls, DataFlow, Frames, Keys, Modules, Ops, Recording, Spans
from tracer.capture.sources.compiled_code import is_generated
from tracer.capture.sources.operator_lines import source_text
from tracer.capture.sources.source_files import is_own_code, is_package_code, is_user_code, whole_path

# A data-flow edge collects what happened to a storage below one node, as bits.
WRITTEN, UNKNOWN, READ, FREED, ALLOCATED = 1, 2, 4, 8, 16

_INLINE_FRAME = list(Ops.__dataclass_fields__).index("inline_frame")
_OP_WIDTH = len(Ops.__dataclass_fields__) - 1  # until sources are read, the last frame is the inline one
_CALL_WIDTH, _SPAN_WIDTH = 9, 4
_TIME, _ADDRESS, _SIZE, _NUMBER, _ASSUMED, _WIDTH = 0, 1, 2, 3, 8, 9
"""Indices into a row of allocations: time, address, size, number, two counters, operator, call, assumed."""
ALLOCATION_ROW, OP_ROW, CALL_ROW, SPAN_ROW = (
    Struct(f"{width}q").pack for width in (_WIDTH, _OP_WIDTH, _CALL_WIDTH, _SPAN_WIDTH)
)


class EventTables:
    """Tables of one recording. Whoever fills them numbers allocations, frames and strings as they appear."""

    def __init__(self) -> None:
        self.strings, self.frames, self.devices, self.shapes = Interned(), Interned(), Interned(), Interned()
        # Tables row by row, packed: 8 bytes a number instead of the 40 or more that lists of tuples take, and a third
        # of the time that an array takes to be extended.
        self.allocations, self.ops, self.calls, self.spans = bytearray(), bytearray(), bytearray(), bytearray()
        self.modules: dict[int, int] = {}
        self.module_names: list[int] = []
        self.node_time: list[int] = []
        self.node_backward: list[bool] = []
        self.node_edges: list[dict[int, int]] = []
        # Per allocation id: (id, device, address) at first sight, and what its tensors span.
        self.storages: dict[int, tuple[int | None, int, int]] = {}
        self.span_bytes: dict[int, int] = {}
        # Per allocation id shape and dtype of the first tensor of it that an operator was given.
        self.descriptions: dict[int, tuple[int, int]] = {}
        # Of the own number of an allocation id that was handed out again without a recorded free: that allocation id.
        self.original: dict[int, int] = {}
        # Devices and addresses, where the profiler numbers no allocations: all or none have numbers of its own.
        self.places = Interned()
        self.gradients: list[int] = []
        self.parameters: list[int] = []
        self.optimizer_states: list[int] = []
        self.num_events = 0


def to_columns(
    tables: EventTables,
    *,
    frames_of: Callable[[EventTables], Frames] | None = None,
    text_of: TextOf = source_text,
) -> Recording:
    """The recording that the tables are of. It holds none of their objects.

    Args:
        frames_of: Says whose the places in the code are; by default as the files of this process are.
    """
    # Where the profiler did not number allocations, they are in order of time, and storages refer to these numbers.
    if tables.places:
        rows = np.frombuffer(tables.allocations, np.int64).reshape(-1, _WIDTH)
        numbered, places = _number_in_time(rows)
        tables.allocations = bytearray(numbered.tobytes())
        tables.storages = {number: tables.storages[place] for number, place in enumerate(places.tolist())}
    _number_renamed_frees(tables)
    allocations = _columns(tables.allocations, _WIDTH)
    keys, key_of = _keys(tables, *allocations[:4])
    frames = (frames_of or _frame_columns)(tables)
    ops = _columns(tables.ops, _OP_WIDTH)
    recording = Recording(
        strings=tuple(tables.strings),
        shapes=tuple(tables.shapes),
        devices=tuple(tables.devices),
        allocations=_allocation_columns(tables, allocations, key_of),
        keys=keys,
        flow=_flow(tables, key_of),
        ops=Ops(*(*ops, ops[_INLINE_FRAME])),
        calls=Calls(*_columns(tables.calls, _CALL_WIDTH)),
        spans=Spans(*_columns(tables.spans, _SPAN_WIDTH)),
        frames=frames,
        modules=Modules(np.array(list(tables.modules), np.int64), np.array(tables.module_names, np.int64)),
        gradient_keys=_key_set(tables.gradients, key_of),
        parameter_keys=_key_set(tables.parameters, key_of),
        optimizer_state_keys=_key_set(tables.optimizer_states, key_of),
        num_events=tables.num_events,
    )
    return place_inline_operators(recording, text_of)


def _number_renamed_frees(tables: EventTables) -> None:
    """Pair allocations and frees of numbers that were used twice in order of time.

    Events of another thread are read apart: what came first may be read last. A free is of the allocation before it;
    an allocation without a free was freed unseen right before the next one, the latest it can have been.
    """
    if not tables.original:
        return
    rows = np.frombuffer(tables.allocations, np.int64).reshape(-1, _WIDTH).copy()
    first = np.array([tables.original.get(number, number) for number in rows[:, _NUMBER].tolist()], np.int64)
    frees, before = [], []
    for number in set(tables.original.values()):
        mine = np.flatnonzero(first == number)
        alive = None
        for row in mine[np.argsort(rows[mine, _TIME], kind="stable")].tolist():
            if rows[row, _SIZE] > 0:
                if alive is not None:
                    free = np.full(_WIDTH, -1, np.int64)
                    free[[_TIME, _ADDRESS]] = max(rows[row, _TIME] - 1, rows[alive, _TIME]), rows[row, _ADDRESS]
                    free[[_SIZE, _NUMBER, _ASSUMED]] = -rows[alive, _SIZE], rows[alive, _NUMBER], 1
                    frees.append(free)
                    before.append(row)
                alive = row
            elif alive is not None:
                rows[row, _NUMBER], alive = rows[alive, _NUMBER], None
    unseen = np.array(frees, np.int64).reshape(-1, _WIDTH)
    tables.allocations = bytearray(np.insert(rows, np.array(before, np.int64), unseen, axis=0).tobytes())


def _number_in_time(rows: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], Ints]:
    """Give each allocation and its free a number of their own: by address, in order of time.

    What a GPU's thread of the engine does is read behind all that the main thread does, so that the order of reading
    says nothing of which free is which allocation's. An allocation where another one lies was preceded by a free that
    no row tells of; it is put in right before, the latest it can have been.

    Of rows [A, _WIDTH], numbered by device and address: the rows with those frees, and what each number was.
    """
    order = np.lexsort((rows[:, _TIME], rows[:, _NUMBER]))
    place, size = rows[order, _NUMBER], rows[order, _SIZE]
    is_first = np.diff(place, prepend=-1) != 0
    size_before = np.concatenate([[0], size[:-1]])
    begins = is_first | (size > 0) | (size_before <= 0)
    number = np.cumsum(begins) - 1
    numbered = rows.copy()
    numbered[order, _NUMBER] = number
    again = np.flatnonzero(~is_first & (size > 0) & (size_before > 0))
    frees = np.full((len(again), _WIDTH), -1, np.int64)
    frees[:, :_SIZE] = rows[order[again], :_SIZE]
    # The timeline puts frees behind allocations of the same time; but no block is freed before it is allocated.
    frees[:, _TIME] = np.maximum(frees[:, _TIME] - 1, rows[order[again - 1], _TIME])
    frees[:, _SIZE], frees[:, _NUMBER], frees[:, -1] = -size_before[again], number[again] - 1, 1
    return np.insert(numbered, order[again], frees, axis=0), place[begins]


def _frame_columns(tables: EventTables) -> Frames:
    def has_path(file: str) -> bool:
        return is_package_code(file) or is_generated(file)

    user = [is_user_code(file) for file, *_ in tables.frames]
    rows = [
        (tables.strings[whole_path(file) if mine or has_path(file) else file], line, tables.strings[function])
        for (file, line, function), mine in zip(tables.frames, user, strict=True)
    ]
    file, line, function = _table(rows, 3)
    own = [is_own_code(file) for file, *_ in tables.frames]
    return Frames(file, line, function, np.array(user, bool), np.array(own, bool))


def _keys(
    tables: EventTables, time_ns: Ints, address: Ints, size_bytes: Ints, number: Ints
) -> tuple[Keys, dict[int, int]]:
    """Storages that were seen as tensors, in torch's order of keys, and the row of each allocation id."""
    in_time = np.argsort(time_ns, kind="stable")
    allocated, first = np.unique(number[in_time], return_index=True)
    size_of = dict(tables.span_bytes)
    size_of.update(zip(allocated.tolist(), np.abs(size_bytes[in_time][first]).tolist(), strict=True))
    # A tensor's key sorts by (id, allocation id, device); a renamed storage follows the one it was split from.
    tensors = [
        (storage[0], tables.original.get(number, number), max(0, -number), number)
        for number, storage in tables.storages.items()
        if storage[0] is not None
    ]
    tensors.sort()
    numbers = [row[3] for row in tensors]
    none = (-1, -1)
    rows = [
        (row[0], row[1], *tables.storages[row[3]][1:], size_of.get(row[3], 0), *tables.descriptions.get(row[3], none))
        for row in tensors
    ]
    return Keys(*_table(rows, 7)), {number: row for row, number in enumerate(numbers)}


def _allocation_columns(tables: EventTables, columns: tuple[Ints, ...], key_of: dict[int, int]) -> Allocations:
    time, address, size, number, allocated, reserved, op, call, assumed = columns
    distinct, inverse = np.unique(number, return_inverse=True)
    numbers = distinct.tolist()
    return Allocations(
        time_ns=time,
        address=address,
        size_bytes=size,
        allocation_id=number,
        key=np.array([key_of.get(n, -1) for n in numbers], np.int64)[inverse],
        device=np.array([tables.storages[n][1] for n in numbers], np.int64)[inverse],
        total_allocated_bytes=allocated,
        total_reserved_bytes=reserved,
        op=op,
        call=call,
        assumed=assumed.astype(bool),
    )


def _flow(tables: EventTables, key_of: dict[int, int]) -> DataFlow:
    time = np.array(tables.node_time, np.int64)
    order = np.argsort(time, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    num_edges = np.array([len(edges) for edges in tables.node_edges], np.int64)
    node = np.repeat(rank, num_edges)
    numbers = np.fromiter(itertools.chain.from_iterable(tables.node_edges), np.int64)
    distinct, inverse = np.unique(numbers, return_inverse=True)
    key = np.array([key_of.get(number, -1) for number in distinct.tolist()], np.int64)[inverse]
    bits = np.fromiter(itertools.chain.from_iterable(map(dict.values, tables.node_edges)), np.int64)
    tensors = key >= 0
    node, key, bits = node[tensors], key[tensors], bits[tensors]
    sort = np.lexsort((key, node))
    node, key, bits = node[sort], key[sort], bits[sort]
    touched = bits & (WRITTEN | UNKNOWN | READ)
    return DataFlow(
        node_time_ns=time[order],
        node_backward=np.array(tables.node_backward, bool)[order],
        edge_node=node,
        edge_key=key,
        edge_allocated=(bits & ALLOCATED) > 0,
        edge_freed=(bits & FREED) > 0,
        # An operator without a matching schema counts as a writer only where no known one touched the storage.
        edge_mutated=((touched & WRITTEN) > 0) | (touched == UNKNOWN),
    )


def _columns(packed: bytearray | array[int], width: int) -> tuple[Ints, ...]:
    rows = np.frombuffer(packed, np.int64) if packed else np.empty(0, np.int64)
    return tuple(np.ascontiguousarray(column) for column in rows.reshape(-1, width).T)


def _table(rows: Sequence[tuple[Any, ...]], width: int) -> tuple[Ints, ...]:
    return _columns(array("q", [value for row in rows for value in row]), width)


def _key_set(numbers: list[int], key_of: dict[int, int]) -> Ints:
    return np.unique(np.array([key_of[number] for number in numbers if number in key_of], np.int64))
