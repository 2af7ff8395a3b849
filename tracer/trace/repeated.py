"""Events that a file has twice, and allocator counts that it leaves out."""

from __future__ import annotations

from typing import Final

import numpy as np

from tracer.arrays import Bool, Column, Int, Ints
from tracer.trace.tables import NOT_COUNTED, Table, TraceTables

# Any odd number that spreads the values of a row over 64 bits: the golden ratio's.
_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)


def drop_repeated(tables: TraceTables) -> int:
    """Drop rows that are equal to another one in all that is read of an event, and return their number.

    Equal allocations are one only if nothing else happened at their address between them.
    """
    operators, python, work = tables.operators, tables.python, tables.work
    # Short operators of old traces, in whole microseconds and without a number, may look alike.
    is_numbered = (operators["external_id"] >= 0) | (operators["is_region"] != 0)
    return (
        _drop(tables, "operators", _is_repeated(operators) & is_numbered)
        + _drop(tables, "python", _is_repeated(python) & (python["id"] >= 0))
        + _drop(tables, "work", _is_repeated(work) & (work["correlation"] > 0))
        + _drop(tables, "memory", _is_repeated_at_its_address(tables.memory))
    )


def fill_counts(tables: TraceTables) -> None:
    """Set the allocator's count where an event lacks it: from its neighbours' and the sizes in between.

    A device without any count starts with what is freed and was not allocated in the trace.

    Example:
        Sizes 5, -5, 7 and counts 105, missing, missing: 105, 100, 107.
    """
    memory = tables.memory
    if not (memory["allocated_bytes"] == NOT_COUNTED).any():
        return
    memory = memory.copy()
    for device in np.unique(memory["device"]).tolist():
        rows = np.flatnonzero(memory["device"] == device)
        rows = rows[np.argsort(memory["time_ns"][rows], kind="stable")]
        memory["allocated_bytes"][rows] = _counts(memory[rows])
    tables.replace("memory", memory)


def _drop(tables: TraceTables, name: str, dropped: Column[Bool]) -> int:
    if dropped.any():
        tables.replace(name, getattr(tables, name)[~dropped])
    return int(dropped.sum())


def _is_repeated(rows: Table) -> Column[Bool]:
    """[rows] whether an earlier row is equal."""
    key = np.zeros(len(rows), np.uint64)
    for name in rows.dtype.names or ():
        key = (key + rows[name].astype(np.uint64)) * _FACTOR
    order = np.argsort(key, kind="stable")
    candidates = np.flatnonzero(key[order][1:] == key[order][:-1]) + 1
    repeated = np.zeros(len(rows), np.bool_)
    repeated[order[candidates]] = rows[order[candidates]] == rows[order[candidates - 1]]
    return repeated


def _is_repeated_at_its_address(memory: Table) -> Column[Bool]:
    order = np.lexsort((memory["time_ns"], memory["address"], memory["device"]))
    repeated = np.zeros(len(memory), np.bool_)
    repeated[order[1:]] = memory[order[1:]] == memory[order[:-1]]
    return repeated


def _counts(memory: Table) -> Ints:
    """[rows] counts of one device's events in order of time."""
    counted, changed = memory["allocated_bytes"], np.cumsum(memory["size_bytes"])
    known = np.flatnonzero(counted != NOT_COUNTED)
    if not len(known):
        return np.asarray(changed + _freed_from_before(memory), Int)
    nearest = known[np.maximum(np.searchsorted(known, np.arange(len(memory)), side="right") - 1, 0)]
    return np.asarray(counted[nearest] - changed[nearest] + changed, Int)


def _freed_from_before(memory: Table) -> int:
    allocated: set[int] = set()
    freed_bytes = 0
    for address, size in zip(memory["address"].tolist(), memory["size_bytes"].tolist(), strict=True):
        if size > 0:
            allocated.add(address)
        elif address in allocated:
            allocated.remove(address)
        else:
            freed_bytes -= size
    return freed_bytes
