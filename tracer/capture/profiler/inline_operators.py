"""Places operators that make no call, such as `a + b`, between the calls around them, and so on a line of their own."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from tracer.arrays import Rows
from tracer.capture.recording import CallKind, Frames, OpKind, Recording
from tracer.capture.sources.operator_lines import FunctionSource, function_source, source_text

Frame = tuple[int, int, int]
"""File and function, as indices of `Recording.strings`, and the line between them: what a row of `Frames` says."""
TextOf = Callable[[str], str | None]


def place_inline_operators(recording: Recording, text_of: TextOf = source_text) -> Recording:
    """Put the operators that ran in a Python function of the user or a library itself on lines of their own.

    What an earlier look at the sources has found is forgotten where there is a source now, and stays where there is
    none.

    Args:
        text_of: The source of a file by its absolute path; nothing where there is none any more.
    """
    ops, calls, frames = recording.ops, recording.calls, recording.frames
    rows = np.flatnonzero((ops.kind == OpKind.OPERATOR) & (ops.call >= 0))
    rows = rows[calls.kind[ops.call[rows]] != CallKind.C_FUNCTION]
    sources = _Sources(recording, text_of)
    functions = calls.function[ops.call[rows]]
    readable = np.array([function >= 0 and sources.has_text(function) for function in functions.tolist()], bool)
    rows = rows[readable]
    inline_frame = ops.inline_frame.copy()
    inline_frame[rows] = ops.last_frame[rows]
    known = {frame: row for row, frame in reversed(list(enumerate(sources.frames)))}
    added: list[tuple[Frame, int]] = []
    for row, frame, function in _inline_frames(recording, rows, sources):
        if frame not in known:
            known[frame] = len(sources.frames) + len(added)
            added.append((frame, function))
        inline_frame[row] = known[frame]
    return replace(recording, ops=replace(ops, inline_frame=inline_frame), frames=_with(frames, added))


def _with(frames: Frames, added: list[tuple[Frame, int]]) -> Frames:
    """More frames at the end, of the same owners as the functions that they are in."""
    triples = np.array([frame for frame, _ in added], np.int64).reshape(-1, 3)
    of = np.array([function for _, function in added], np.int64)
    return Frames(
        file=np.concatenate([frames.file, triples[:, 0]]),
        line=np.concatenate([frames.line, triples[:, 1]]),
        function=np.concatenate([frames.function, triples[:, 2]]),
        user=np.concatenate([frames.user, frames.user[of]]),
        own=np.concatenate([frames.own, frames.own[of]]),
    )


class _Sources:
    """The functions of the user and of libraries that a recording names, with their sources."""

    def __init__(self, recording: Recording, text_of: TextOf) -> None:
        frames = recording.frames
        self.frames: list[Frame] = list(
            zip(frames.file.tolist(), frames.line.tolist(), frames.function.tolist(), strict=True)
        )
        # Files of the user and of libraries have whole paths; torch's and Python's own do not.
        self._is_own, self._strings = frames.own.tolist(), recording.strings
        self._text_of, self._texts = text_of, dict[int, str]()

    def _text(self, function: int) -> str:
        file = self.frames[function][0]
        if file not in self._texts:
            path = self._strings[file]
            is_named = Path(path).is_absolute() and not self._is_own[function]
            self._texts[file] = (self._text_of(path) or "") if is_named else ""
        return self._texts[file]

    def has_text(self, function: int) -> bool:
        """True if the file of a function, by its row in `Frames`, is the user's or a library's and can be read."""
        return bool(self._text(function))

    def function(self, function: int) -> FunctionSource | None:
        """The source of a function, by its row in `Frames`."""
        _, first_line, name = self.frames[function]
        return function_source(self._text(function), first_line, self._strings[name])


def _inline_frames(recording: Recording, rows: Rows, sources: _Sources) -> Iterator[tuple[int, Frame, int]]:
    """Row, frame and function of those operators whose line the source tells."""
    ops, strings, frames = recording.ops, recording.strings, sources.frames
    inside = _CallsInside(recording)
    counted: dict[tuple[int, int, int], int] = defaultdict(int)
    columns = (rows, ops.name[rows], ops.call[rows], ops.start_ns[rows], ops.last_frame[rows])
    for row, name, call, start_ns, last in zip(*(column.tolist() for column in columns), strict=True):
        function = int(recording.calls.function[call])
        file, _, called = frames[function]
        num_before, following = inside.around(call, start_ns)
        number = counted[call, num_before, name]
        counted[call, num_before, name] += 1
        around = [frames[frame] if frame >= 0 else None for frame in (last, following)]
        if any(frame is not None and (frame[0], frame[2]) != (file, called) for frame in around):
            continue  # called from elsewhere, as hooks are
        source = sources.function(function)
        if source is None:
            continue
        after, before = (frame[1] if frame is not None else None for frame in around)
        line = source.line_of(strings[name], after=after, before=before, number=number)
        if line is not None:
            yield row, (file, line, called), function


class _CallsInside:
    """The calls that each call makes, in order."""

    def __init__(self, recording: Recording) -> None:
        calls = recording.calls
        order = np.lexsort((calls.start_ns, calls.parent))
        self._parent = calls.parent[order]
        self._start_ns = calls.start_ns[order].tolist()
        self._frame = calls.frame[order].tolist()

    def around(self, call: int, time_ns: int) -> tuple[int, int]:
        """Number of calls made by then, and the frame that makes the next one; -1 if there is none."""
        first, end = (int(np.searchsorted(self._parent, call, side)) for side in ("left", "right"))
        at = bisect_right(self._start_ns, time_ns, first, end)
        return at - first, self._frame[at] if at < end else -1
