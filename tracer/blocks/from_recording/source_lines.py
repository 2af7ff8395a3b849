"""Lines of source, as findings name them, and the owner of each frame's code: which of them end the search for a line.

A library's line says what was computed, as `transformers/models/t5/modeling_t5.py:562` does where a whole training is
one call of a trainer; the user's line that led there says from where. Torch's and Python's own lines say neither.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import PurePosixPath, PureWindowsPath

import numpy as np

from tracer.arrays import Int, PerFrame
from tracer.capture.recording import Recording
from tracer.capture.sources.compiled_code import is_generated
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import OVERRIDES


class CodeOwner(IntEnum):
    """The owner of the code that a frame runs."""

    TRACER = -1  # This program's own; the search for a line stops here, unless the user's code called it
    TORCH = 0
    """Or Python's own, or what torch.compile generated, or a method that every operation on a kind of tensor calls."""
    LIBRARY = 1
    USER = 2


def owner_of_frames(recording: Recording) -> PerFrame[Int]:
    """[F] `CodeOwner` each frame is."""
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
        [CodeOwner.TORCH, CodeOwner.USER, CodeOwner.TRACER],
        np.array([is_absolute[file] for file in frames.file.tolist()], np.int64),
    )


def line_of_frame(recording: Recording, frame: int) -> SourceLine | None:
    """A row of `Recording.frames` as a line of source; None for -1."""
    if frame < 0:
        return None
    return SourceLine(recording.strings[recording.frames.file[frame]], int(recording.frames.line[frame]))
