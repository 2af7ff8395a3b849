"""What ran on a device, with when the host launched it, as columns. W rows: kernels, copies and fills."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracer.arrays import Bool, Column, Int, Ints
from tracer.capture.device.device_kernels import Kernels
from tracer.trace.host_order import in_ns
from tracer.trace.tables import TraceTables, WorkKind

# Kernels of NCCL, RCCL, oneCCL and MSCCL, as their libraries name them.
_COLLECTIVE = re.compile(r"^(void )?(nccl|rccl|oneccl|msccl)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """Columns [W], in order of their starts.

    Attributes:
        start_ns: On the clock of the host.
        end_ns: Likewise.
        is_copy: Copies and fills.
        is_communication: Kernels of a library of collectives.
        device: Index.
        stream: Number.
        name: Index in `names`.
        launched_ns: End of the driver's call that launched it; -1 where the trace has none.
        operator_ns: Start of the innermost operator that launched it; -1 where none did.
        thread: That operator's thread, numbered as in the recording; -1 for none.
        group: Index in `names`: the ranks that a collective is of, as the trace has them; -1 where it does not say.
        names: Of kernels and groups.
    """

    start_ns: Ints
    end_ns: Ints
    is_copy: Column[Bool]
    is_communication: Column[Bool]
    device: Ints
    stream: Ints
    name: Ints
    launched_ns: Ints
    operator_ns: Ints
    thread: Ints
    group: Ints
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Ints:
        """[W] of each."""
        return self.end_ns - self.start_ns

    def kernels(self) -> Kernels | None:
        """What operators launched, as a recording has it; None where they launched nothing."""
        linked = self.operator_ns >= 0
        if not linked.any():
            return None
        return Kernels(self.operator_ns[linked], self.thread[linked], self.duration_ns[linked])

    def take(self, rows: Column[Any]) -> DeviceWork:
        """Some rows."""
        columns = {name: getattr(self, name)[rows] for name in self.__dataclass_fields__ if name != "names"}
        return DeviceWork(**columns, names=self.names)


def device_work(tables: TraceTables, thread_of: dict[int, int], base_ns: int) -> DeviceWork:
    """The work of all devices in a trace.

    Args:
        tables: Of the trace.
        thread_of: Numbers of threads in the recording, by those of the tables.
        base_ns: What times count from.
    """
    work, operators, calls = tables.work, tables.operators, tables.calls
    start = in_ns(work["start_us"], base_ns)
    order = np.argsort(start, kind="stable")
    work, start = work[order], start[order]
    names = tuple(tables.names)
    used = np.unique(work["name"])
    collective = used[[_COLLECTIVE.match(names[name]) is not None for name in used.tolist()]] if len(used) else used
    operator = _row_of(operators["external_id"], work["external_id"])
    call = _row_of(calls["correlation"], work["correlation"])
    call_end = in_ns(calls["start_us"], base_ns) + np.maximum(in_ns(calls["duration_us"], 0), 0)
    operator_start = in_ns(operators["start_us"], base_ns)
    threads = np.array([thread_of.get(thread, -1) for thread in operators["thread"].tolist()], Int)
    return DeviceWork(
        start_ns=start,
        end_ns=start + np.maximum(in_ns(work["duration_us"], 0), 0),
        is_copy=work["kind"] != WorkKind.KERNEL,
        is_communication=np.isin(work["name"], collective),
        device=work["device"].astype(Int),
        stream=work["stream"].astype(Int),
        name=work["name"].astype(Int),
        launched_ns=_of(call_end, call),
        operator_ns=_of(operator_start, operator),
        thread=_of(threads, operator),
        group=work["group"].astype(Int),
        names=names,
    )


def _row_of(ids: Column[Any], wanted: Column[Any]) -> Ints:
    """The row that has each id, or -1; an id of 0 or less is none."""
    if not len(ids):
        return np.full(len(wanted), -1, Int)
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    return np.where((ids[order][at] == wanted) & (wanted > 0), order[at], -1)


def _of(column: Ints, rows: Ints) -> Ints:
    return np.where(rows >= 0, column[np.maximum(rows, 0)], -1) if len(column) else np.full(len(rows), -1, Int)
