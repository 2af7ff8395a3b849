"""The errors that a person is meant to read: one sentence that says what is wrong, one hint that says what to do."""

from __future__ import annotations

import signal
from typing import ClassVar


class TracerError(Exception):
    """A mistake or a circumstance that the person at the keyboard can act on.

    The command line prints the message and the hint on stderr, without a traceback, and exits with its status. Anything
    that is not a `TracerError` is a fault of this program and keeps its traceback.

    Attributes:
        hint: What to do about it, one sentence, or the empty string.
        exit_status: With which the command line ends.
    """

    exit_status: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            self.add_note(f"Hint: {hint}")  # where the command line does not catch it, as in a notebook

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines that the command line prints for this error."""
        return (f"Error: {self}", f"Hint: {self.hint}") if self.hint else (f"Error: {self}",)


class UsageError(TracerError):
    """A request that is wrong on any machine and with any files, such as a value that an option does not have."""

    exit_status = 2


class RecordingError(TracerError):
    """A profiler recording lacks what an analysis needs, or has a shape that this version does not know."""


class SnapshotError(TracerError):
    """A file is not a readable allocator snapshot."""


class SettingsError(UsageError):
    """Settings of the caching allocator that torch would refuse, or that name another allocator."""


class OutputError(TracerError):
    """An output file cannot be written."""


class MissingPackageError(OutputError):
    """An output needs a package that is not installed; it is left out, and the run is none the worse for it."""


class WorkloadError(TracerError):
    """The model, its input or its training step cannot be built or run as asked."""


class UserModelError(WorkloadError):
    """A mistake in a user's model, arguments or inputs; where user code raised, its exception is the cause."""


class WrongValueError(UserModelError):
    """A value that an option lacks, on whatever machine and with whatever model."""

    exit_status = 2


class Terminated(SystemExit):
    """SIGTERM or SIGHUP has come; a program that does nothing about it ends with the usual status."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
        self.number = number

    @property
    def signal_name(self) -> str:
        """Name of the signal, such as SIGTERM."""
        return signal.Signals(self.number).name

    def __str__(self) -> str:
        return f"ended by {self.signal_name}"

    def __reduce__(self) -> tuple[type[Terminated], tuple[int]]:
        return Terminated, (self.number,)


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, without its full stop; the name of its type if there is no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def error_words(error: BaseException) -> str:
    """`ValueError: first line of the message`, or `ValueError`."""
    return ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])


class NullGpuError(TracerError):
    """The null GPU cannot be built or started here: no compiler, no CUDA build of torch, another system than Linux."""
