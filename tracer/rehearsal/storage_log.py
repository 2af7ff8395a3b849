"""What a rehearsal writes down: storages and their lives, operators, calls, and who read and wrote what.

Lists that grow row by row; `columns` makes arrays of them. Time is a counter: every row gets its own microsecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType, FrameType

from tracer.arrays import Interned
from tracer.capture.recording import CallKind
from tracer.capture.sources.source_files import is_package_code, is_user_code, whole_path

NONE = -1
TICK_NS = 1000
READ, WRITTEN, ALLOCATED, FREED = 1, 2, 4, 8


@dataclass(slots=True, eq=False)
class StorageLog:
    """Tables of a rehearsal, one list a table."""

    strings: Interned = field(default_factory=Interned)  # All names, interned
    shapes: Interned = field(default_factory=Interned)  # All sets of input shapes, interned
    # (file, line, function, whether it is the user's) of every line named.
    frames: Interned = field(default_factory=Interned)
    modules: Interned = field(default_factory=Interned)  # `id()` of every module called; the value is its row
    module_names: list[int] = field(default_factory=list)  # Index in `strings` of torch's kind of name, by row
    # (bytes, shape or -1, dtype or -1, whether a tensor shows it, whether it is on the host).
    storages: list[tuple[int, int, int, bool, bool]] = field(default_factory=list)
    # (storage, bytes, below zero for a free, time, operator, call).
    events: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    ops: list[list[int]] = field(default_factory=list)  # Rows of `Ops`, as lists, since an end is written later
    calls: list[list[int]] = field(default_factory=list)  # Rows of `Calls`, as lists
    spans: list[tuple[int, int, int]] = field(default_factory=list)  # (name, start, end)
    # (time, whether in backward, bits by storage).
    nodes: list[tuple[int, bool, dict[int, int]]] = field(default_factory=list)
    observations: list[tuple[int, int, int, str]] = field(default_factory=list)  # (time, storage, role, name)
    gradients: set[int] = field(default_factory=set)  # Storages that were accumulated as a gradient
    # (row of the event before it, bytes, whether in backward) of what a library may take for itself.
    undecided: list[tuple[int, int, bool]] = field(default_factory=list)
    now_ns: int = 0  # The time of the last row

    def tick(self) -> int:
        """The next time."""
        self.now_ns += TICK_NS
        return self.now_ns

    def add_node(self, time_ns: int, *, backward: bool) -> dict[int, int]:
        """Begin a node of the data flow; returns the bits of the storages that it touches."""
        bits: dict[int, int] = {}
        self.nodes.append((time_ns, backward, bits))
        return bits


_KIND, _PARENT, _OP, _FRAME, _FUNCTION, _MODULE, _START, _END, _THREAD = range(9)


class OpenCalls:
    """The open calls of a rehearsal, as rows of the log's calls.

    A call of a module or of a backward pass is known from its beginning. Between two of them, and between the last one
    and an operator, the lines are read off Python's frames: only those of the user and of libraries.
    """

    def __init__(self, log: StorageLog, outermost: FrameType) -> None:
        self._log = log
        self._code: dict[CodeType, tuple[str, bool] | None] = {}
        # Per open call: the frame that makes what it calls, its row, and the lines that are open inside of it.
        self._stack: list[tuple[FrameType, int, list[tuple[int, int]]]] = [(outermost, NONE, [])]

    @property
    def depth(self) -> int:
        """How many modules and backward passes are open."""
        return len(self._stack) - 1

    def row(self, frame: FrameType | None, node: int) -> int:
        """The innermost call, a line's, a module's or a backward pass's."""
        log = self._log
        barrier, call, lines = self._stack[-1]
        frames: list[int] = []
        while frame is not None and frame is not barrier:
            code = frame.f_code
            if code not in self._code:
                self._code[code] = _who(code)
            of_code = self._code[code]
            if of_code is not None:
                frames.append(log.frames[of_code[0], frame.f_lineno or 0, code.co_name, of_code[1]])
            frame = frame.f_back
        now, position = log.tick(), 0
        for position, wanted in enumerate(reversed(frames)):
            if position < len(lines) and lines[position][0] == wanted:
                call = lines[position][1]
                continue
            del lines[position:]
            log.calls.append([int(CallKind.C_FUNCTION), call, node, wanted, NONE, NONE, now, now, 0])
            call = len(log.calls) - 1
            lines.append((wanted, call))
        del lines[len(frames) :]
        return call

    def forget_lines(self) -> None:
        """What runs next is another call, even on the same line."""
        del self._stack[-1][2][:]

    def touch(self) -> None:
        """What is open is so until now."""
        now, calls = self._log.now_ns, self._log.calls
        for _, call, lines in reversed(self._stack):
            for _, line in lines:
                calls[line][_END] = now
            if call >= 0:
                calls[call][_END] = now

    def enter(self, barrier: FrameType, node: int, *, module: int = NONE, function: int = NONE) -> None:
        """A module is called, or a function of torch's that matters."""
        log = self._log
        parent = self.row(barrier.f_back, node)
        kind = CallKind.MODULE if module >= 0 else CallKind.PYTHON
        called_from = log.calls[parent][_FRAME] if parent >= 0 else self._no_frame()
        now = log.tick()
        log.calls.append([int(kind), parent, node, called_from, function, module, now, now, 0])
        self._stack.append((barrier, len(log.calls) - 1, []))

    def leave(self) -> None:
        """The last one that was entered has ended."""
        self._log.tick()
        self.touch()
        self._stack.pop()

    def _no_frame(self) -> int:
        """A frame of nobody's: a call has to come from somewhere."""
        return self._log.frames["", 0, "", False]


def _who(code: CodeType) -> tuple[str, bool] | None:
    """The name of a code's file, and whether it is the user's; None for torch's, Python's and this program's."""
    file = code.co_filename
    if is_user_code(file):
        return whole_path(file), True
    return (whole_path(file), False) if is_package_code(file) else None
