"""Every value of the device that the program read: by line and operator, with what it was and how it is known."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

import torch

from tracer.capture.run_facts import ValueRead
from tracer.errors import TracerError
from tracer.null_gpu.values.answers import Answer
from tracer.null_gpu.values.device_values import Known

_NOT_THE_PROGRAM = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parent}{os.sep}", "<frozen")
"""Files whose frames are passed over on the way to the line that reads."""

MAX_READS = 100_000
"""By one line with one operator, at which a program is ended. A step that only reads takes 0.1 ms, a model's some."""


_Line = tuple[str, int, str]
"""File, number and function of a line of the program."""


class EndlessLoopError(TracerError):
    """A loop that waits for a device value to change does not end where nothing is computed."""


class ReadLog:
    """The values that the program has read so far, and those that were given for lines of it."""

    def __init__(self, answers: Mapping[tuple[str, int], Answer], max_reads: int) -> None:
        """Begin with nothing read.

        Args:
            max_reads: By one line with one operator, at which the program is ended.
        """
        self._answers = dict(answers)
        self._unused = dict.fromkeys(answers)
        self._max_reads = max_reads
        self._reads: dict[tuple[_Line, str], ValueRead] = {}

    def reads(self) -> tuple[ValueRead, ...]:
        """Return the values that were read so far, in the order in which they were first read."""
        return tuple(self._reads.values())

    def unused_answers(self) -> tuple[str, ...]:
        """Lines for which a value was given, and that have read nothing yet, such as `train.py:12`."""
        return tuple(f"{file}:{number}" for file, number in self._unused)

    def answer(self) -> Answer | None:
        """The value that was given for the line that reads now, or for one that called it."""
        if not self._answers:
            return None
        for path, line, _ in _program_lines():
            for (file, number), value in self._answers.items():
                if line == number and _is_file(path, file):
                    self._unused.pop((file, number), None)
                    return value
        return None

    def note(self, operator: str, value: str, known: Known, *, answered: bool = False, size: int | None = None) -> None:
        """Enter a read.

        Raises:
            EndlessLoopError: The same line has read too often.
        """
        place = file, line, function = next(_program_lines(), ("", 0, ""))
        before = self._reads.get((place, operator))
        known = min(known, Known[before.known.upper()]) if before else known
        self._reads[place, operator] = read = ValueRead(
            file=file,
            line=line,
            function=function,
            operator=operator,
            count=1 + (before.count if before else 0),
            value=value,
            known=known.name.lower(),
            answered=answered or (before is not None and before.answered),
            decides_size=size is not None,
            num_empty=(before.num_empty if before else 0) + (size == 0),
        )
        if read.count >= self._max_reads:
            raise EndlessLoopError(
                f"{file}:{line} has read a value of the null GPU {read.count:,} times, which looks like a "
                "loop without end.",
                hint=f"Give the value that ends it: --answer {Path(file).name}:{line}=VALUE.",
            )


def _program_lines() -> Iterator[_Line]:
    """The lines outside torch that are being executed by this thread, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_NOT_THE_PROGRAM):
            yield file, frame.f_lineno, frame.f_code.co_qualname
        frame = frame.f_back


def _is_file(path: str, wanted: str) -> bool:
    parts = Path(wanted).parts
    return Path(path).parts[-len(parts) :] == parts
