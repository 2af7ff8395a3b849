"""Sorts the reader's raw columns by device and makes numpy tables of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tracer.arrays import ColumnTable
from tracer.errors import SnapshotError
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import (
    Annotations,
    DeviceState,
    Frame,
    Int32s,
    Segments,
    Snapshot,
    Stacks,
    StateBlocks,
    Trace,
)
from tracer.snapshot.reader import MAX_DEVICES, RawSnapshot
from tracer.snapshot.rows import UNKNOWN_FREE
from tracer.snapshot.text import printable

Table = Mapping[str, NDArray[Any]]
_Columns = TypeVar("_Columns", bound=ColumnTable)
_EMPTY_TRACE = {"action": np.uint8, "addr": np.int64, "size": np.int64, "stream": np.int64, "time_us": np.int64}
# No device has a petabyte; the limits keep every address and sum of a file exact in 64 bits.
_MAX_BYTES = 1 << 50
_MAX_ADDRESS = 1 << 62
_MAX_TOTAL_BYTES = float(1 << 62)
_RANGES = {
    "addr": (0, _MAX_ADDRESS),
    "address": (0, _MAX_ADDRESS),
    "size": (0, _MAX_BYTES),
    "requested_size": (0, _MAX_BYTES),
    "total_size": (0, _MAX_BYTES),
    "stream": (0, _MAX_ADDRESS),
    "time_us": (-1, np.iinfo(np.int64).max),
    "device": (-1, MAX_DEVICES - 1),
}


def assemble(raw: RawSnapshot, path: Path) -> Snapshot:
    """Make a `Snapshot` of raw columns."""
    columns = {name: np.frombuffer(column, dtype=column.typecode) for name, column in raw.columns.items()}
    traces = _by_device(columns)
    for name, column in columns.items():
        if name.endswith(".addr"):
            is_unknown = (columns[f"{name[:-4]}action"] == Action.OOM) & (column == UNKNOWN_FREE)
            column = np.where(is_unknown, 0, column)
        _check_range(name, column, path)
    stack_of_id: Int32s = columns["stack_of_id"]
    segments, blocks, annotations = (_under(columns, f"{name}.") for name in ("segment", "block", "annotation"))
    segment_of_block = np.repeat(np.arange(len(segments["device"])), np.diff(segments["first_block"]))
    blocks |= {"stack": stack_of_id[blocks["stack"]], "stream": segments["stream"][segment_of_block]}
    all_segments, all_blocks, all_notes = (
        _of(Segments, segments),
        _of(StateBlocks, blocks),
        _of(Annotations, annotations),
    )
    devices, remarks = [], list[str]()
    for device in sorted({*raw.devices, *np.unique(segments["device"]).tolist()}):
        in_device = segments["device"] == device
        trace = _trace(traces.get(device, {}), stack_of_id)
        if not len(trace) and not in_device.any():
            continue
        trace, num_mended = _with_whole_times(trace)
        if num_mended:
            remarks.append(
                f"Of device {device}, {num_mended:,} times are missing or go back: the last one before stands."
            )
        state = DeviceState(
            device=device,
            trace=trace,
            segments=all_segments.take(in_device),
            blocks=all_blocks.take(in_device[segment_of_block]),
            # -1 stands for regions that name no device.
            annotations=all_notes.take(np.isin(annotations["device"], (device, -1))),
        )
        sizes = (state.trace.size, state.segments.total_size, state.blocks.size, state.blocks.requested_size)
        if sum(float(size.sum(dtype=np.float64)) for size in sizes) > _MAX_TOTAL_BYTES:
            raise SnapshotError(
                f"{path}: the sizes of device {state.device} sum to more than any device ever held.",
                hint="The file is damaged.",
            )
        devices.append(state)
    # A process of a job sees the GPUs of all others; torch notes on each of them that a snapshot was taken.
    used = [state for state in devices if len(state.segments.address) or (state.trace.action != Action.SNAPSHOT).any()]
    return Snapshot(
        devices=tuple(used or devices),
        stacks=_stacks(columns, list(map(printable, raw.strings))),
        texts=tuple(map(printable, raw.texts)),
        settings=raw.settings,
        pinned_bytes=int(columns["pinned.size"].sum()),
        remarks=tuple(remarks),
    )


def _under(columns: Table, prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): column for name, column in columns.items() if name.startswith(prefix)}


def _by_device(columns: Table) -> dict[int, dict[str, NDArray[Any]]]:
    """The columns of each device's trace; a file may claim thousands of devices."""
    tables: dict[int, dict[str, NDArray[Any]]] = {}
    for name, column in columns.items():
        table, _, rest = name.partition(".")
        if table == "trace":
            device, _, key = rest.partition(".")
            tables.setdefault(int(device), {})[key] = column
    return tables


def _with_whole_times(trace: Trace) -> tuple[Trace, int]:
    """The trace with times that never go back, and of how many entries they did, or were missing among others."""
    times = trace.time_us
    if not len(times) or (times < 0).all() or ((times[0] >= 0) and (np.diff(times) >= 0).all()):
        return trace, 0
    mended = np.maximum.accumulate(times)
    first = int(mended[mended >= 0][0])
    mended = np.where(mended < 0, first, mended)
    return replace(trace, time_us=mended), int(np.count_nonzero(mended != times))


def _trace(table: Table, stack_of_id: Int32s) -> Trace:
    length = len(table.get("action", ()))
    none = np.broadcast_to(np.int32(-1), length)
    ints = {key: table.get(key, np.zeros(0, dtype=kind)) for key, kind in _EMPTY_TRACE.items()}
    return Trace(
        **ints,
        stack=stack_of_id[table["stack"]] if length else np.zeros(0, dtype=np.int32),
        category=table.get("category", none),
        metadata=table.get("metadata", none),
        pool=table.get("pool", none),
    )


def _of(kind: type[_Columns], table: Table) -> _Columns:
    columns = {name: table[name] for name in kind.names()}
    return kind(**{name: c.astype(np.bool_) if name.startswith("is_") else c for name, c in columns.items()})


def _stacks(columns: Table, strings: list[str]) -> Stacks:
    names, files, lines = (columns[key].tolist() for key in ("frame_name", "frame_file", "frame_line"))
    frames = tuple(Frame(strings[n], strings[f], line) for n, f, line in zip(names, files, lines, strict=True))
    return Stacks(frames=frames, offset=columns["stack_offset"], frame_of=columns["stack_frame"])


def _check_range(name: str, column: NDArray[Any], path: Path) -> None:
    table, _, key = name.rpartition(".")
    if key not in _RANGES:
        return
    low, high = _RANGES[key]
    if not (is_wrong := (column < low) | (column > high)).any():
        return
    index, device = int(np.flatnonzero(is_wrong)[0]), table.removeprefix("trace.")
    row = f"{table.capitalize()} {index}" if device == table else f"Entry {index} of device {device}"
    raise SnapshotError(
        f"{row} has {'an' if key[0] == 'a' else 'a'} {key} of {int(column[index])}, which no allocator writes.",
        hint=f"{path.name} is damaged.",
    )
