"""Memory of each line of one source file in a snapshot."""

from __future__ import annotations

import numpy as np

from tracer.analysis.line_memory import BlocksOfLines, FreedPlace, LineMemory, line_memory_of
from tracer.analysis.snapshots.frames import is_python
from tracer.analysis.snapshots.kind_finder import ReplayedDevice
from tracer.arrays import Ints, at
from tracer.capture.sources.source_line import SourceLine
from tracer.snapshot.columns import Stacks

_PHASES = ("freed", "backward", "optimizer")  # A snapshot tells no forward


def files_of(stacks: Stacks) -> tuple[str, ...]:
    """Return the Python files that stacks name."""
    return tuple(dict.fromkeys(frame.file for frame in stacks.frames if is_python(frame)))


def line_memory(device: ReplayedDevice, file: str) -> tuple[LineMemory, ...]:
    """Sum up the blocks of a device by the lines of a file that allocated them, the largest at the peak first.

    A block counts on the innermost line of the file in its stack, and a block of backward on that of its operation in
    forward, where that is certain. Bytes are requested bytes. A relative path that the file's ends in is the file's, as
    that of a script is in the script itself and absolute in its functions.
    """
    lives, kinds, trace, stacks = device.replay.lives, device.kinds, device.state.trace, device.snapshot.stacks
    line_of_stack = _innermost_lines(stacks, file)
    is_labelled = stacks.with_one_of([frame.name.startswith("backward of ") for frame in stacks.frames])  # By a tracer
    forward = kinds.backward_lines.forward_stacks(np.arange(len(lives)))
    line = line_of_stack[np.where(forward >= 0, forward, lives.stack)]
    block = np.flatnonzero(line >= 0)
    numbers, index = np.unique(line[block], return_inverse=True)
    freed_at, free_entry = lives.end[block], lives.free_entry[block]
    pairs = BlocksOfLines(
        line=index,
        size_bytes=lives.requested_bytes[block],
        made_at=lives.begin[block],
        freed_at=freed_at,
        is_of_backward=kinds.facts.in_backward[block] | is_labelled[lives.stack[block]],
        freed_phase=np.where(freed_at < len(trace), _phases(device, np.maximum(free_entry, 0)), -1),
        freed_line=np.where(free_entry >= 0, line_of_stack[at(trace.stack, free_entry, 0)], -1),
    )

    def place(phase: int, line: int) -> FreedPlace:
        return _PHASES[phase] if phase >= 0 else None, SourceLine(file, line) if line >= 0 else None

    lines = [SourceLine(file, number) for number in numbers.tolist()]
    return line_memory_of(lines, pairs, position=device.replay.peak_entry, place=place)


def _phases(device: ReplayedDevice, entry: Ints) -> Ints:
    """The index in `_PHASES` of each entry."""
    phases = device.kinds.phases
    in_backward = phases.backwards.containing(entry) >= 0
    return np.where(phases.steps.containing(entry) >= 0, 2, in_backward.astype(np.int64))


def _innermost_lines(stacks: Stacks, file: str) -> Ints:
    """The number of the innermost line of a file in each stack [stacks]; -1 where it has none."""
    names = {name for name in files_of(stacks) if name == file or file.endswith(f"/{name}")}
    of_frame = np.array([frame.line if frame.file in names else -1 for frame in stacks.frames] or [-1], np.int64)
    line = of_frame[stacks.frame_of]
    place = np.flatnonzero(line >= 0)
    # A stack's innermost frame comes first in it, and the first assignment in reverse order stays.
    lines = np.full(len(stacks), -1, np.int64)
    lines[np.repeat(np.arange(len(stacks)), np.diff(stacks.offset))[place[::-1]]] = line[place[::-1]]
    return lines
