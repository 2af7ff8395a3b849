"""A trace's rows as the columns of a recording, so that everything said of a run is said of a trace.

What encloses what is read off the times, thread by thread, as torch's own event tree does; which operators have a row
of their own, which call and operator an allocation is of, is decided as `capture.profiler.event_tree` does. Whose file
a call is in is judged by names alone: the trace may be from another machine, and nothing is looked for on this one.

HostTable:
    torch/csrc/profiler/collection.cpp: `build_tree`; `ExtraFields<EventType::PyCall>`, which writes `file(line):
    function` and `nn.Module: Class_0`, and C functions as `repr` names them. The profiler cuts the entries of
    `sys.path` off a file's name, so that torch's files begin with `torch/` and Python's are names of its modules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import IntEnum
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

import numpy as np

from tracer.arrays import Int, Ints
from tracer.capture.profiler.event_columns import ALLOCATION_ROW, CALL_ROW, OP_ROW, SPAN_ROW, EventTables, to_columns
from tracer.capture.profiler.inline_operators import TextOf
from tracer.capture.recording import CallKind, Frames, OpKind, Recording
from tracer.capture.sources.compiled_code import is_generated
from tracer.capture.torch_names import (
    ENGINE_PREFIX,
    LOADER_PREFIX,
    MODULE_CALL,
    OPTIMIZER_PREFIXES,
    STEP_PREFIX,
    is_backward_node,
)
from tracer.snapshot.remarks import Remarks
from tracer.trace.device_work import DeviceWork, device_work
from tracer.trace.tables import Table, TraceTables

_MODULE_PREFIX: Final = "nn.Module: "
_FUNCTION = re.compile(r"^(.*)\((-?\d{1,9})\): (.*)$", re.DOTALL)
_PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})

_PACKAGE: Final = Path(__file__).resolve().parents[1]

Place = tuple[str, int, str]  # File, line and function


class Called(NamedTuple):
    """The code of a call: a function with the line of its `def`, a module by torch's name of it, or a C function."""

    kind: CallKind
    function: Place | None
    module: str | None


def called(name: str) -> Called:
    """The code that a call runs, by its event."""
    if name.startswith(_MODULE_PREFIX):
        return Called(CallKind.MODULE, (MODULE_CALL[0], 0, MODULE_CALL[1]), name.removeprefix(_MODULE_PREFIX))
    match = None if name.startswith("<built-in ") else _FUNCTION.match(name)
    if match is None:
        return Called(CallKind.C_FUNCTION, None, None)
    return Called(CallKind.PYTHON, (match[1], int(match[2]), match[3]), None)


def line_of(called_from: str) -> tuple[str, int] | None:
    """File and line of `train.py:13`."""
    file, _, line = called_from.rpartition(":")
    return (file, int(line)) if file and line.isdecimal() and len(line) < 10 else None


def is_users(file: str) -> bool:
    """Whether a file is neither torch's, nor Python's own, nor in a folder of packages, nor generated."""
    if not file or file.startswith("<") or is_generated(file) or is_ours(file):
        return False
    path = PurePosixPath(file.replace("\\", "/"))
    first = path.parts[0] if path.parts else ""
    if path.is_absolute() or ":" in first:
        return not _PACKAGE_FOLDERS.intersection(path.parts) and not _is_pythons(path)
    return first not in ("torch", "triton") and first.removesuffix(".py") not in sys.stdlib_module_names


def is_ours(file: str) -> bool:
    """Whether a file is this program's, which the traces of its own runs name: asked of its own folder alone."""
    path = PurePosixPath(file)
    return path.parts[:1] == (_PACKAGE.name,) and ".." not in path.parts and (_PACKAGE.parent / path).is_file()


def _is_pythons(path: PurePosixPath) -> bool:
    """Whether a path has a folder such as `lib/python3.11` in it."""
    return any(re.fullmatch(r"python3\.\d+", part) is not None for part in path.parts)


# c10/core/DeviceType.h; the name of a device that a program registered is not in the trace.
_DEVICE_TYPES: Final = {
    0: "cpu", 1: "cuda", 6: "cuda", 9: "xla", 12: "xpu", 13: "mps", 15: "hpu", 18: "ipu", 19: "mtia",
    20: "privateuseone",
}  # fmt: skip
_OPERATOR, _ENGINE, _BACKWARD_NODE = int(OpKind.OPERATOR), int(OpKind.ENGINE), int(OpKind.BACKWARD_NODE)
_REGIONS = (STEP_PREFIX, *OPTIMIZER_PREFIXES, LOADER_PREFIX)

Context = tuple[int, int, int, bool, str]
"""Of what a row encloses: when it ends; the innermost call and the operator with a row of its own; whether an operator
is called from Python or the engine; and the autograd node that the engine works on, or nothing."""


def device_text(device_type: int, index: int) -> str:
    """A device as `str(torch.device)` writes it."""
    name = _DEVICE_TYPES.get(device_type, "privateuseone")
    return name if name == "cpu" else f"{name}:{max(index, 0)}"


def recording_of(tables: TraceTables, rows: HostRows, base_ns: int, text_of: TextOf) -> tuple[Recording, DeviceWork]:
    """The recording that a trace has, and what ran on devices.

    Args:
        text_of: The source of a file by its name in the trace, where lines of operators may be read from it.
    """
    reader = _TraceReader(tables)
    for thread in rows.threads:
        reader.read(thread, rows.of(thread))
    reader.num_events = tables.num_events
    recording = to_columns(reader, frames_of=_frames, text_of=text_of)
    work = device_work(tables, reader.thread_of, base_ns, recording.ops)
    return replace(recording, kernels=work.kernels()), work


def _frames(tables: EventTables) -> Frames:
    """Distinct places; whose they are is judged by their names."""
    triples = [(tables.strings[file], line, tables.strings[function]) for file, line, function in tables.frames]
    columns = np.array(triples, np.int64).reshape(-1, 3).T
    file, line, function = (np.ascontiguousarray(column) for column in columns)
    user, own = (np.array([holds(name) for name, *_ in tables.frames], np.bool_) for holds in (is_users, is_ours))
    return Frames(file, line, function, user, own)


class _TraceReader(EventTables):
    """A walk over the rows of each thread that fills the tables."""

    def __init__(self, tables: TraceTables) -> None:
        super().__init__()
        self.thread_of: dict[int, int] = {}
        self._names = tables.texts()
        self._places: list[Place] = []
        self._called: dict[int, tuple[int, int, int]] = {}
        self._frame_of: dict[tuple[int, int], int] = {}
        self._num_ops = self._num_calls = 0
        # Per call: the function of it, or of the one that encloses it where it is C's, as a frame.
        self._function: list[int] = []
        self._devices = [self.devices[device_text(*device)] for device in tables.devices]
        self._shape_of = [self.shapes[shapes] for shapes in tables.shapes]
        python, operators, memory = tables.python, tables.operators, tables.memory
        self._python = [python[column].tolist() for column in ("name", "called_from")]
        self._operators = [operators[column].tolist() for column in ("name", "sequence_number", "is_region", "shapes")]
        self._memory = [
            memory[column].tolist()
            for column in ("address", "size_bytes", "allocated_bytes", "reserved_bytes", "device")
        ]

    def read(self, thread_id: int, rows: Iterable[tuple[int, int, int, int]]) -> None:
        """Read the rows of one thread; with the JSON, this is where the time goes.

        Args:
            rows: Table, row, start and end of each, in order.
        """
        thread = self.thread_of.setdefault(thread_id, len(self.thread_of))
        names, called_names, called_from = self._names, *self._python
        op_names, sequence_numbers, is_region, op_shapes = self._operators
        address, size, allocated, reserved, device = self._memory
        last_frame: dict[int, int] = {}
        stack: list[Context] = []
        call, op, outermost, node = -1, -1, True, ""
        for source, row, start, end in rows:
            # An allocation at the very end of an operator is the operator's.
            while stack and (stack[-1][0] < start or (stack[-1][0] == start and source != HostTable.MEMORY)):
                stack.pop()
            _, call, op, outermost, node = stack[-1] if stack else (0, -1, -1, True, "")
            if source == HostTable.OPERATOR:
                name = names[op_names[row]]
                inner_op, inner_outermost, inner_node = op, False, ""
                if is_region[row] or name.startswith(_REGIONS):
                    self.spans += SPAN_ROW(self.strings[name], start, end, thread)
                    inner_outermost = True
                elif outermost or node:
                    is_node = bool(node) and (name == node or is_backward_node(name))
                    is_engine = name.startswith(ENGINE_PREFIX)
                    kind = _BACKWARD_NODE if is_node else _ENGINE if is_engine else _OPERATOR
                    self.ops += OP_ROW(
                        self.strings[name], kind, op, call, start, end, sequence_numbers[row], thread,
                        last_frame.get(call, -1), self._shape_of[op_shapes[row]],
                    )  # fmt: skip
                    inner_op, self._num_ops = self._num_ops, self._num_ops + 1
                    inner_outermost = is_node or is_engine
                    inner_node = name.removeprefix(ENGINE_PREFIX) if is_engine or is_node else ""
                stack.append((end, call, inner_op, inner_outermost, inner_node))
            elif source == HostTable.MEMORY:
                place = self.places[device[row], address[row]]
                self.storages[place] = (None, self._devices[device[row]], address[row])
                self.allocations += ALLOCATION_ROW(
                    start, address[row], size[row], place, allocated[row], reserved[row], op, call, False
                )
            else:
                kind, function, module = self._call_of(called_names[row])
                enclosing = self._function[call] if call >= 0 else -1
                frame = self._caller(called_from[row], enclosing if enclosing >= 0 else function)
                last_frame[call] = frame
                self.calls += CALL_ROW(kind, call, op, frame, function, module, start, end, thread)
                self._function.append(function if function >= 0 else enclosing)
                stack.append((end, self._num_calls, op, True, ""))
                self._num_calls += 1

    def _call_of(self, name: int) -> tuple[int, int, int]:
        known = self._called.get(name)
        if known is None:
            kind, function, module = called(self._names[name])
            row = -1 if module is None else self._module(module)
            known = self._called[name] = int(kind), -1 if function is None else self._frame(function), row
        return known

    def _frame(self, place: Place) -> int:
        row = self.frames[place]
        if row == len(self._places):
            self._places.append(place)
        return row

    def _module(self, name: str) -> int:
        """The module's row. A trace knows no addresses: its name, which torch numbers, stands in."""
        text = self.strings[name]
        if text not in self.modules:
            self.modules[text] = len(self.module_names)
            self.module_names.append(text)
        return self.modules[text]

    def _caller(self, called_from: int, function: int) -> int:
        """The frame that a call was made from: its line, or where the trace does not say it that of the function."""
        key = called_from, function
        frame = self._frame_of.get(key)
        if frame is None:
            line = line_of(self._names[called_from]) if called_from >= 0 else None
            if line is None:
                return function
            name = self._places[function][2] if function >= 0 else ""
            frame = self._frame_of[key] = self._frame((*line, name))
        return frame


_ROWS_AT_A_TIME = 1 << 16
THREADS_GUESSED = "Python's calls are on a thread without operators, and are taken to be the main thread's"


class HostTable(IntEnum):
    """The table of a row."""

    PYTHON = 0
    OPERATOR = 1
    MEMORY = 2


class HostRows:
    """The rows of a trace by thread.

    Attributes:
        threads: Numbers of the threads with operators, calls or allocations: those that Python ran on first.
    """

    def __init__(self, tables: TraceTables, base_ns: int, remarks: Remarks) -> None:
        """Sort the rows of all tables by thread and time."""
        python, operators, memory = tables.python, tables.operators, tables.memory
        thread = _python_threads(python, operators, remarks)
        start = np.concatenate(
            [base_ns + column for column in (python["start_ns"], operators["start_ns"], memory["time_ns"])]
        )
        end = start + np.concatenate([python["duration_ns"], operators["duration_ns"], np.zeros(len(memory), Int)])
        source = np.repeat(np.arange(3), [len(python), len(operators), len(memory)])
        row = np.concatenate([np.arange(len(table)) for table in (python, operators, memory)])
        thread = np.concatenate([thread, operators["thread"], memory["thread"]])
        order = np.lexsort((row, source, -end, start, thread))
        self._columns = tuple(column[order] for column in (source, row, start, end))
        sorted_thread = thread[order]
        numbers, first = np.unique(sorted_thread, return_index=True)
        last = np.append(first[1:], len(order))[: len(first)]
        self._range = dict(zip(numbers.tolist(), zip(first.tolist(), last.tolist(), strict=True), strict=True))
        has_python = np.isin(numbers, thread[: len(python)])
        self.threads: list[int] = numbers[np.lexsort((self._columns[2][first], ~has_python))].tolist()

    def of(self, thread: int) -> Iterator[tuple[int, int, int, int]]:
        """Table, row, start and end in nanoseconds of each row of a thread, what encloses others before these."""
        first, last = self._range[thread]
        for at in range(first, last, _ROWS_AT_A_TIME):
            some = slice(at, min(at + _ROWS_AT_A_TIME, last))
            yield from zip(*(column[some].tolist() for column in self._columns), strict=True)


def _python_threads(python: Table, operators: Table, remarks: Remarks) -> Ints:
    """The thread of every call.

    Some versions of torch write all calls of Python under thread 0, those of several threads among each other. Calls
    know the call that made them: what has no other above it begins a thread, and two that overlap are of two threads.
    The one with most calls is then that of the steps, or else of most operators.
    """
    thread = python["thread"].astype(Int)
    lost = ~np.isin(thread, np.unique(operators["thread"]))
    if not lost.any() or not len(operators):
        return thread
    rows = np.flatnonzero(lost)
    lane = _lanes(python[rows])
    busiest = int(np.bincount(lane).argmax())
    main = _main_thread(operators)
    if main in np.unique(thread[~lost]):
        return thread
    # The others explain no operator, and are threads of their own.
    thread[rows] = np.where(lane == busiest, main, -2 - lane)
    remarks.add_many(THREADS_GUESSED, int((lane == busiest).sum()), "as torch 2.4 to 2.7 have them")
    return thread


def _main_thread(operators: Table) -> int:
    """The thread of most named regions, which programs mark in the main thread, else of most operators."""
    regions = operators["thread"][operators["is_region"] != 0]
    return int(np.bincount(regions if len(regions) else operators["thread"]).argmax())


def _lanes(python: Table) -> Ints:
    """A number for each thread that some calls must be of: roots that overlap are of different ones."""
    start = python["start_ns"]
    end = start + python["duration_ns"]
    row_of = {number: row for row, number in enumerate(python["id"].tolist())}
    parents = python["parent_id"].tolist()
    lane = [-1] * len(parents)
    free_from: list[int] = []
    for row in np.argsort(start, kind="stable").tolist():
        above = row_of.get(parents[row], -1)
        if above >= 0 and lane[above] >= 0:
            lane[row] = lane[above]
            continue
        place = next((number for number, free in enumerate(free_from) if free <= start[row]), len(free_from))
        free_from[place : place + 1] = [int(end[row])]
        lane[row] = place
    return np.array(lane, Int)
