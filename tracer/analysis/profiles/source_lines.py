"""Lines of user code, as findings name them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tracer.analysis.profiles.attribution import Attribution
from tracer.capture.recording import Recording


class Place(NamedTuple):
    """A line of a file; the path is as the recording has it, absolute for user code."""

    file: str
    line: int


def place_of(recording: Recording, frame: int) -> Place | None:
    """A row of `Recording.frames` as a place; None for -1."""
    if frame < 0:
        return None
    return Place(recording.strings[recording.frames.file[frame]], int(recording.frames.line[frame]))


def frames_of_op(recording: Recording, attribution: Attribution, op: int) -> tuple[Place, ...]:
    """The lines of user code through which an operator was called, innermost first.

    Args:
        recording: One cycle.
        attribution: Its owners; the first line is the one that it gives to the operator.
        op: Row in `Recording.ops`, outside backward.
    """
    frames = recording.frames
    rows = [int(attribution.op_frame[op])] if attribution.op_frame[op] >= 0 else []
    for frame in _call_frames(recording, int(recording.ops.call[op])):
        if frames.user[frame] and (not rows or frame != rows[-1]):
            rows.append(frame)
    return tuple(place for row in rows if (place := place_of(recording, row)) is not None)


def _call_frames(recording: Recording, call: int) -> Iterator[int]:
    calls = recording.calls
    while call >= 0:
        if calls.frame[call] >= 0:
            yield int(calls.frame[call])
        call = int(calls.parent[call])
