"""The Python stacks of a profiled run's allocations, as snapshots have them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tracer.answers.labels import Frame
from tracer.capture.recording import CallKind, Recording
from tracer.own_files import frames_of_program

if TYPE_CHECKING:
    from tracer.answers.peak import Peak


class PythonStacks:
    """Python frames of allocations, innermost first; equal ones are one object, which keeps files small."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        strings, frames = recording.strings, recording.frames
        self.frames: list[Frame] = [
            {"name": strings[function], "filename": strings[file], "line": line}
            for function, file, line in zip(
                frames.function.tolist(), frames.file.tolist(), frames.line.tolist(), strict=True
            )
        ]
        calls = recording.calls
        self.call_frame, self.call_parent = calls.frame.tolist(), calls.parent.tolist()
        self.call_function, self.call_kind = calls.function.tolist(), calls.kind.tolist()
        self.inline_frame = recording.ops.inline_frame.tolist()
        self.of_call: dict[tuple[int, int], list[Frame]] = {}
        self.of_rows: dict[tuple[int, ...], list[Frame]] = {}

    def of_allocation(self, allocation: int) -> list[Frame]:
        """Frames of an allocation; none where no Python code was running, as on autograd's own threads."""
        if allocation < 0:
            return []
        allocations = self.recording.allocations
        call, op = int(allocations.call[allocation]), int(allocations.op[allocation])
        if call < 0:
            return []
        inner = -1
        if self.call_kind[call] != CallKind.C_FUNCTION:
            # No call of its own, as behind `a + b`: it runs in the called function, at the line seen last.
            inline = self.inline_frame[op] if op >= 0 else -1
            inner = inline if inline >= 0 else self.call_function[call]
        return self._stack(call, inner)

    def _stack(self, call: int, inner: int) -> list[Frame]:
        key = (call, inner)
        if key not in self.of_call:
            rows = [inner] if inner >= 0 else []
            while call >= 0:
                rows.append(self.call_frame[call])
                call = self.call_parent[call]
            frames = self.of_rows.get(tuple(rows))
            if frames is None:
                frames = self.of_rows[tuple(rows)] = [self.frames[row] for row in rows]
            self.of_call[key] = frames
        return self.of_call[key]

    def words_of(self, allocation: int) -> tuple[str, ...]:
        """Frames of the program's as text, innermost first: `forward (model.py:7)`."""
        frames = self.of_allocation(allocation)
        shown = [frames[at] for at in frames_of_program([frame["filename"] for frame in frames])]
        return tuple(f"{frame['name']} ({frame['filename']}:{frame['line']})" for frame in shown)


def stacks_of_rows(recording: Recording, peak: Peak, *, num_rows: int, num_frames: int) -> list[list[str] | None]:
    """The stack of most bytes, for each of a peak's largest rows.

    Returns:
        Frames as text, innermost first; None where no Python frame led to any block of the row.
    """
    stacks = PythonStacks(recording)
    totals: list[Counter[int]] = [Counter() for _ in peak.rows[:num_rows]]
    allocation_of: dict[int, int] = {}
    columns = (peak.row_of, peak.blocks.row, peak.blocks.size_bytes)
    for row, allocation, size_bytes in zip(*(column.tolist() for column in columns), strict=True):
        if row < len(totals) and (frames := stacks.of_allocation(allocation)):
            totals[row][id(frames)] += size_bytes  # equal stacks are one object, which lives as long as `stacks`
            allocation_of.setdefault(id(frames), allocation)
    stacks_by_row: list[list[str] | None] = [None] * len(peak.rows)
    for row, total in enumerate(totals):
        if total:
            ((largest, _),) = total.most_common(1)
            stacks_by_row[row] = list(stacks.words_of(allocation_of[largest])[:num_frames]) or None
    return stacks_by_row
