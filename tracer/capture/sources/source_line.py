"""A line of source code: what an analysis answers with when it is asked where."""

from __future__ import annotations

from typing import NamedTuple


class SourceLine(NamedTuple):
    """A line of a file; the path is as the recording has it, absolute for user code."""

    file: str
    line: int

    @classmethod
    def known(cls, file: str | None, line: int | None) -> SourceLine | None:
        """Return the line; None where a part of it is not known."""
        return None if file is None or line is None else cls(file, line)
