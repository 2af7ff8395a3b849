"""What ran on a device, with when the host launched it, as columns. W rows: kernels, copies and fills."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracer.arrays import Bool, Column, Int, Ints, at
from tracer.capture.recording import Kernels, Ops
from tracer.trace.tables import Table, TraceTables, WorkKind

# Kernels of NCCL, RCCL, oneCCL and MSCCL, as their libraries name them.
_CUPTIS_DEFAULT_STREAM = 7
_OF_ALL = ("names", "default_stream")
_COLLECTIVE = re.compile(r"^(void )?(nccl|rccl|oneccl|msccl)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceWork:
    """Columns [W], in order of their starts."""

    start_ns: Ints  # Start on the host's clock
    end_ns: Ints
    is_copy: Column[Bool]
    is_communication: Column[Bool]
    device: Ints  # Index
    stream: Ints
    name: Ints  # Index in `names`
    launched_ns: Ints  # End of the driver's call that launched it; -1 where the trace has none
    operator_ns: Ints  # Start of the innermost operator that launched it; -1 where none did
    thread: Ints  # Thread of that operator, numbered as in the recording; -1 for none
    group: Ints  # Index in `names`: the ranks that a collective is of, as the trace has them; -1 where it does not say
    names: tuple[str, ...]
    default_stream: int = -1  # The number of CUDA's default stream; -1 where that is not known

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Ints:
        """[W] of each."""
        return self.end_ns - self.start_ns

    def kernels(self) -> Kernels | None:
        """Return the work that operators launched, as in a recording; None without any."""
        linked = self.operator_ns >= 0
        if not linked.any():
            return None
        return Kernels(self.operator_ns[linked], self.thread[linked], self.duration_ns[linked])

    def take(self, rows: Column[Any]) -> DeviceWork:
        """The work in some rows."""
        columns = {name: getattr(self, name)[rows] for name in self.__dataclass_fields__ if name not in _OF_ALL}
        return DeviceWork(**columns, names=self.names, default_stream=self.default_stream)


def device_work(tables: TraceTables, thread_of: dict[int, int], base_ns: int, ops: Ops) -> DeviceWork:
    """The work of all devices in a trace.

    Args:
        ops: Operators of the recording; the one around a launch stands for work that names no operator.
    """
    work, operators, calls = tables.work, tables.operators, tables.calls
    start = work["start_ns"] + base_ns
    order = np.argsort(start, kind="stable")
    work, start = work[order], start[order]
    names = tuple(tables.texts())
    used = np.unique(work["name"])
    collective = used[[_COLLECTIVE.match(names[name]) is not None for name in used.tolist()]] if len(used) else used
    operator = np.where(names_operators(work), _row_of(operators["external_id"], work["external_id"]), -1)
    call = _row_of(calls["correlation"], work["correlation"])
    call_start = calls["start_ns"] + base_ns
    call_end = call_start + calls["duration_ns"]
    operator_start = operators["start_ns"] + base_ns
    number_of = np.array([thread_of.get(thread, -1) for thread in range(len(tables.threads))], Int)
    operator_ns, thread = at(operator_start, operator, -1), at(number_of[operators["thread"]], operator, -1)
    lost = np.flatnonzero((operator < 0) & (call >= 0))
    by_call = call[lost]
    launching = operators_of_calls(ops, number_of[calls["thread"][by_call]], call_start[by_call], call_end[by_call])
    lost, launching = lost[launching >= 0], launching[launching >= 0]
    operator_ns[lost], thread[lost] = ops.start_ns[launching], ops.thread[launching]
    return DeviceWork(
        start_ns=start,
        end_ns=start + work["duration_ns"],
        is_copy=work["kind"] != WorkKind.KERNEL,
        is_communication=np.isin(work["name"], collective),
        device=work["device"].astype(Int),
        stream=work["stream"].astype(Int),
        name=work["name"].astype(Int),
        launched_ns=at(call_end, call, -1),
        operator_ns=operator_ns,
        thread=thread,
        group=work["group"].astype(Int),
        names=names,
        default_stream=_default_stream(calls, names),
    )


def _default_stream(calls: Table, names: tuple[str, ...]) -> int:
    """CUPTI numbers the default stream of the first context 7; ROCm's numbers are those of queues."""
    called = (names[name] for name in np.unique(calls["name"]).tolist())
    return _CUPTIS_DEFAULT_STREAM if any(name.startswith("cuda") for name in called) else -1


def _row_of(ids: Column[Any], wanted: Column[Any]) -> Ints:
    """The row that has each id, or -1; an id of 0 or less is none."""
    if not len(ids):
        return np.full(len(wanted), -1, Int)
    order = np.argsort(ids, kind="stable")
    at = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    return np.where((ids[order][at] == wanted) & (wanted > 0), order[at], -1)


def operators_of_calls(ops: Ops, thread: Ints, start_ns: Ints, end_ns: Ints) -> Ints:
    """Row of the operator around each call of the driver, or -1.

    Old traces have whole microseconds, so that an operator may begin where the call of the one before it ends: an
    operator is named only if it is the innermost one at both ends of the call.
    """
    at_start, at_end = ops.running_at(thread, start_ns), ops.running_at(thread, end_ns)
    return np.where(at_start == at_end, at_start, -1)


def names_operators(work: Table) -> Column[Bool]:
    """Whether the `External id` of each row is an operator's number.

    Of kineto until 2023 it may be the correlation of the driver's call instead, in the whole file; those numbers may be
    operators' all the same.
    """
    external, correlation = work["external_id"], work["correlation"]
    is_linked = external > 0
    is_correlation = bool(is_linked.any()) and bool((external[is_linked] == correlation[is_linked]).all())
    return is_linked & (not is_correlation)
