"""A line of source code: what an analysis answers with when it is asked where."""

from __future__ import annotations

from typing import NamedTuple


class SourceLine(NamedTuple):
    """A line of a file; the path is as the recording has it, absolute for user code."""

    file: str
    line: int
