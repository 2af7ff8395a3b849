"""The line of the user's own code at which an exception arose."""

from __future__ import annotations

import traceback
from pathlib import Path

import torch

from tracer.capture.sources.source_files import is_user_code, whole_path
from tracer.capture.sources.source_line import SourceLine

_OUTSIDE = (Path(torch.__file__).resolve().parent, Path(__file__).resolve().parents[2])


def error_line(error: BaseException) -> SourceLine | None:
    """The line, counted from 1, of the innermost frame of the user's code.

    Frames of code that runs a step for somebody, and is not to blame for what happens in it, are passed over: those
    that have set `__tracebackhide__`, as pytest has it. Where no frame is the user's, it is the innermost one outside
    torch and this program, such as a line of a model library. An exception without a traceback has none, except a
    syntax error, which names it.
    """
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return SourceLine(error.filename, error.lineno)
    frames = [
        SourceLine(whole_path(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_globals.get("__tracebackhide__")
    ]
    own = [line for line in frames if is_user_code(line.file)]
    others = [line for line in frames if _is_a_library(line.file)]
    return own[-1] if own else others[-1] if others else None


def _is_a_library(file_name: str) -> bool:
    path = Path(file_name)
    return path.is_absolute() and not any(path.resolve().is_relative_to(folder) for folder in _OUTSIDE)
