"""The owner of a Python frame's code: which frames findings name, and which end the search for a line.

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
from tracer.capture.torch_names import OVERRIDES


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
    is_whole = {file: int(_is_whole(strings[file])) for file in np.unique(frames.file).tolist()}
    other = np.array([is_whole[file] for file in frames.file.tolist()], np.int64)
    is_torchs = recording.is_text(is_generated)[frames.file]
    is_torchs |= recording.is_text(lambda text: text in OVERRIDES)[frames.function]
    return np.select(
        [is_torchs, frames.user.astype(np.bool_), frames.own.astype(np.bool_)],
        [Whose.TORCHS, Whose.USERS, Whose.OURS],
        other,
    )


def _is_whole(file: str) -> bool:
    """Whether a path is absolute on the machine that made the recording, which may be another: torch's are not."""
    return PurePosixPath(file).is_absolute() or PureWindowsPath(file).is_absolute()
