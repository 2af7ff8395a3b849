"""Which of Python's calls are open where an operator runs: modules, backward, lines of the user and libraries."""

from __future__ import annotations

from types import CodeType, FrameType

from tracer.capture.recording import CallKind
from tracer.capture.sources.source_files import is_package_code, is_user_code, whole_path
from tracer.rehearsal.storage_log import NONE, StorageLog

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
        """The innermost call, a line's, a module's or a backward pass's.

        Args:
            node: Row of the autograd node at work, or -1.
        """
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
        """A module is called, or a function of torch's that matters.

        Args:
            node: Row of the autograd node at work, or -1.
        """
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
