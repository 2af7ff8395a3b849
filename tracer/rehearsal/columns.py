"""A rehearsal's log as the columns of a recording, from some moment on, so that the analyses of recordings read it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracer.arrays import Bools, Ints
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.recording import (
    Allocations,
    Calls,
    DataFlow,
    Frames,
    Keys,
    Modules,
    Ops,
    Recording,
    Spans,
)
from tracer.rehearsal.device_memory import DeviceMemory
from tracer.rehearsal.storage_log import ALLOCATED, FREED, NONE, WRITTEN, StorageLog

HOST = "cpu"
_OP_WIDTH, _CALL_WIDTH = len(Ops.__dataclass_fields__), len(Calls.__dataclass_fields__)
_PARENT, _OP_CALL, _CALL_OP = 2, 3, 2
_STRIDE = 1 << 9  # addresses on the host: nobody looks at more than whether two are the same


class RehearsedColumns:
    """The whole log as arrays; `recording` cuts a part out of it."""

    def __init__(self, log: StorageLog, device: str, memory: DeviceMemory | None) -> None:
        """Make arrays of lists.

        Args:
            memory: What a device's allocator makes of the events that are on it, one row for each; None on the CPU,
                which hands out what it is asked for.
        """
        self.device = device  # As `str(torch.device)` writes it
        self._log = log
        self._devices = (device,) if device == HOST else (device, HOST)
        storages = _table([(size, shape, dtype, shown) for size, shape, dtype, shown, _ in log.storages], 4)
        self._shape, self._dtype, self._is_shown = storages[1], storages[2], storages[3].astype(bool)
        on_host = np.array([storage[4] for storage in log.storages], bool)
        self._device = on_host.astype(np.int64) if device != HOST else np.zeros(len(on_host), np.int64)
        events = _table(log.events, 5)
        self._storage, self._size, self._time, self._op, self._call = events
        self._address = np.zeros(len(log.storages), np.int64)
        self._bytes = np.zeros(len(log.storages), np.int64)
        is_allocation = self._size > 0
        sizes = np.zeros(len(log.storages), np.int64)
        sizes[self._storage[is_allocation]] = self._size[is_allocation]
        self._bytes[:] = sizes
        self._address[:] = _STRIDE + np.concatenate([[0], np.cumsum(-(-sizes // _STRIDE) * _STRIDE + _STRIDE)])[:-1]
        self._allocated = np.cumsum(self._size)
        self._reserved = np.zeros(len(self._size), np.int64)
        if memory is not None:
            self._place(memory)
        self._ops, self._calls = _table(log.ops, _OP_WIDTH), _table(log.calls, _CALL_WIDTH)
        self._spans = _table([(name, start, end, 0) for name, start, end in log.spans], 4)

    def _place(self, memory: DeviceMemory) -> None:
        rows = np.flatnonzero(self._device[self._storage] == 0)[: len(memory.address)]
        is_allocation = memory.size_bytes > 0
        which = self._storage[rows]
        self._address[which] = memory.address
        self._bytes[which[is_allocation]] = memory.size_bytes[is_allocation]
        self._size = self._size.copy()
        self._size[rows] = memory.size_bytes
        self._allocated[rows], self._reserved[rows] = memory.allocated_bytes, memory.reserved_bytes

    def recording(
        self,
        start_ns: int,
        *,
        parameters: Iterable[int] = (),
        optimizer_state: Iterable[int] = (),
    ) -> Recording:
        """The recording from a moment on at which no call was open."""
        log = self._log
        events = np.flatnonzero(self._time >= start_ns)
        first_op = int(np.searchsorted(self._ops[4], start_ns))
        first_call = int(np.searchsorted(self._calls[6], start_ns))
        nodes = [node for node in log.nodes if node[0] >= start_ns]
        touched = {storage for _, _, bits in nodes for storage in bits} | set(self._storage[events].tolist())
        keys = np.array(sorted(key for key in touched if self._is_shown[key]), np.int64)
        key_of = np.full(len(self._address) + 1, NONE, np.int64)
        key_of[keys] = np.arange(len(keys))
        ops = [column[first_op:] for column in self._ops]
        ops[_PARENT], ops[_OP_CALL] = _moved(ops[_PARENT], first_op), _moved(ops[_OP_CALL], first_call)
        calls = [column[first_call:] for column in self._calls]
        calls[1], calls[_CALL_OP] = _moved(calls[1], first_call), _moved(calls[_CALL_OP], first_op)
        strings = log.strings
        frames = [
            (strings[file], line, strings[function], int(user)) for file, line, function, user in list(log.frames)
        ]
        file, line, function, user = _table(frames, 4)
        storage = self._storage[events]
        return Recording(
            strings=tuple(strings),
            devices=self._devices,
            shapes=tuple(log.shapes),
            allocations=Allocations(
                time_ns=self._time[events],
                address=self._address[storage],
                size_bytes=self._size[events],
                allocation_id=storage,
                key=key_of[storage],
                device=self._device[storage],
                total_allocated_bytes=self._allocated[events],
                total_reserved_bytes=self._reserved[events],
                op=_moved(self._op[events], first_op),
                call=_moved(self._call[events], first_call),
                assumed=np.zeros(len(events), bool),
            ),
            keys=Keys(
                id=keys,
                allocation_id=keys,
                device=self._device[keys],
                address=self._address[keys],
                size_bytes=self._bytes[keys],
                shape=self._shape[keys],
                dtype=self._dtype[keys],
            ),
            flow=_flow(nodes, key_of),
            ops=Ops(*ops),
            calls=Calls(*calls),
            spans=Spans(*(column[self._spans[1] >= start_ns] for column in self._spans)),
            frames=Frames(file, line, function, user.astype(bool), np.zeros(len(user), bool)),
            modules=Modules(np.array(list(log.modules), np.int64), np.array(log.module_names, np.int64)),
            gradient_keys=_key_set(log.gradients, key_of),
            parameter_keys=_key_set(parameters, key_of),
            optimizer_state_keys=_key_set(optimizer_state, key_of),
            num_events=len(events) + len(ops[0]) + len(calls[0]),
        )

    def known(self) -> KnownStorages:
        """Everything observed, with the moments at which all that was alive was looked at."""
        rows = _table([row[:3] for row in self._log.observations], 3)
        time, storage, role = rows
        names: dict[str, int] = {}
        name = np.array([names.setdefault(row[3], len(names)) for row in self._log.observations], np.int64)
        walks = np.unique(time[role == Role.HELD])
        return KnownStorages(
            time_ns=time,
            address=self._address[storage],
            size_bytes=self._bytes[storage],
            role=role,
            name=name,
            device=self._device[storage],
            names=tuple(names),
            devices=self._devices,
            walks_ns=walks,
        )


def _flow(nodes: list[tuple[int, bool, dict[int, int]]], key_of: Ints) -> DataFlow:
    node = np.repeat(np.arange(len(nodes)), [len(bits) for _, _, bits in nodes]).astype(np.int64)
    key = key_of[np.array([storage for *_, bits in nodes for storage in bits], np.int64)]
    bits = np.array([bit for *_, bits in nodes for bit in bits.values()], np.int64)
    shown = key >= 0
    node, key, bits = node[shown], key[shown], bits[shown]
    order = np.lexsort((key, node))
    node, key, bits = node[order], key[order], bits[order]
    return DataFlow(
        node_time_ns=np.array([time for time, *_ in nodes], np.int64),
        node_backward=np.array([backward for _, backward, _ in nodes], bool),
        edge_node=node,
        edge_key=key,
        edge_allocated=_has(bits, ALLOCATED),
        edge_freed=_has(bits, FREED),
        edge_mutated=_has(bits, WRITTEN),
    )


def _has(bits: Ints, bit: int) -> Bools:
    return np.asarray((bits & bit) > 0, np.bool_)


def _moved(rows: Ints, first: int) -> Ints:
    return np.where(rows >= first, rows - first, NONE)


def _table(rows: Iterable[Iterable[object]], width: int) -> list[Ints]:
    table = np.array([tuple(row) for row in rows], np.int64).reshape(-1, width)
    return [np.ascontiguousarray(column) for column in table.T]


def _key_set(storages: Iterable[int], key_of: Ints) -> Ints:
    keys = key_of[np.array(list(storages), np.int64)]
    return np.unique(keys[keys >= 0])
