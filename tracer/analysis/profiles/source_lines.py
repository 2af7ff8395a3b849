"""Lines of source, as findings name them, and the owner of each frame's code: which of them end the search for a line.

A library's line says what was computed, as `transformers/models/t5/modeling_t5.py:562` does where a whole training is
one call of a trainer; the user's line that led there says from where. Torch's and Python's own lines say neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tracer.arrays import Int, PerFrame
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import is_generated
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import OVERRIDES, node_name

if TYPE_CHECKING:
    from tracer.analysis.profiles.attribution import Attribution


class Whose(IntEnum):
    """The owner of the code that a frame runs."""

    OURS = -1  # This program's own; the search for a line stops here, unless the user's code called it
    TORCHS = 0
    """Or Python's own, or what torch.compile generated, or a method that every operation on a kind of tensor calls."""
    LIBRARYS = 1
    USERS = 2


def whose_frames(recording: Recording) -> PerFrame[Int]:
    """[F] `Whose` each frame is."""
    strings, frames = recording.strings, recording.frames
    # A path is absolute on the machine that made the recording, which may be another: torch's are not.
    is_absolute = {
        file: PurePosixPath(strings[file]).is_absolute() or PureWindowsPath(strings[file]).is_absolute()
        for file in np.unique(frames.file).tolist()
    }
    is_torchs = recording.is_text(is_generated)[frames.file]
    is_torchs |= recording.is_text(lambda text: text in OVERRIDES)[frames.function]
    return np.select(
        [is_torchs, frames.user.astype(np.bool_), frames.own.astype(np.bool_)],
        [Whose.TORCHS, Whose.USERS, Whose.OURS],
        np.array([is_absolute[file] for file in frames.file.tolist()], np.int64),
    )


class PlaceInCode(NamedTuple):
    """An operator, the module that called it and a line of the user's or a library's; None for what is not known."""

    op: str | None
    module: str | None
    file: str | None
    line: int | None

    @property
    def source_line(self) -> SourceLine | None:
        """The line with its file."""
        return SourceLine.known(self.file, self.line)


def place_of(recording: Recording, attribution: Attribution, op: int, module: int, frame: int) -> PlaceInCode:
    """Return the place of an operator, a module and a frame, by their rows; -1 is none."""
    name = attribution.modules[module] if module >= 0 else None
    return PlaceInCode(recorded_op_name(recording, op), name, *(line_of_frame(recording, frame) or (None, None)))


def recorded_op_name(recording: Recording, op: int) -> str | None:
    """An operator's recorded name; for work of the autograd engine the name of the node."""
    return None if op < 0 else node_name(recording.strings[int(recording.ops.name[op])])


def line_of_frame(recording: Recording, frame: int) -> SourceLine | None:
    """A row of `Recording.frames` as a line of source; None for -1."""
    if frame < 0:
        return None
    return SourceLine(recording.strings[recording.frames.file[frame]], int(recording.frames.line[frame]))


def frames_of_op(recording: Recording, attribution: Attribution, op: int) -> tuple[SourceLine, ...]:
    """The lines of the user and of libraries through which an operator was called, innermost first.

    What called the user's outermost line, as a launcher did, is left out.
    """
    rows = [int(attribution.op_frame[op])] if attribution.op_frame[op] >= 0 else []
    is_ours_passed = False
    whose_of = attribution.frame_whose.item  # quicker than an index, of which there are many
    for frame in _call_frames(recording, int(recording.ops.call[op])):
        whose = whose_of(frame)
        is_ours_passed |= bool(whose == Whose.OURS)
        is_named = whose == Whose.USERS or (whose == Whose.LIBRARYS and not is_ours_passed)
        if is_named and (not rows or frame != rows[-1]):
            rows.append(frame)
    users = [at for at, row in enumerate(rows) if attribution.frame_whose[row] == Whose.USERS]
    rows = rows[: users[-1] + 1] if users else rows
    return tuple(line for row in rows if (line := line_of_frame(recording, row)) is not None)


def _call_frames(recording: Recording, call: int) -> Iterator[int]:
    frame_of, parent_of = recording.calls.frame.item, recording.calls.parent.item
    while call >= 0:
        if (frame := frame_of(call)) >= 0:
            yield frame
        call = parent_of(call)
