"""What ends a program from outside, so that results are written all the same, and Ctrl-C leaves no half of them.

SIGTERM, by which torchrun and batch systems end a program, unwinds it like Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self


class Terminated(SystemExit):
    """SIGTERM has come; a program that does nothing about it ends with the usual status."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)

    def __str__(self) -> str:
        return "ended by SIGTERM"

    def __reduce__(self) -> tuple[type[Terminated], tuple[()]]:
        return Terminated, ()


class Termination:
    """Lets SIGTERM unwind the program like any exception, except while files are written.

    Its default would end the process on the spot, and with it what was recorded. A handler of somebody else's is left
    alone, and the default is put back by `close`. Before `watch`, and where it has nothing to do, every method does
    nothing.
    """

    def __init__(self) -> None:
        self._is_ours = False
        self._must_wait = False
        self._is_due = False

    def watch(self) -> None:
        """From now on SIGTERM raises Terminated in the main thread."""
        if _may_handle(signal.SIGTERM, instead_of=signal.SIG_DFL):
            signal.signal(signal.SIGTERM, self._unwind)
            self._is_ours = True

    def _unwind(self, number: int, frame: FrameType | None) -> None:
        if self._must_wait:
            self._is_due = True
        else:
            self._must_wait = True  # a second one does not disturb what the first one has set going
            raise Terminated

    def hold(self) -> None:
        """From now on it waits until `resume` or `close`."""
        self._must_wait, self._is_due = True, False

    def resume(self) -> None:
        """Wait no longer; raises Terminated if SIGTERM came in the meantime."""
        is_due, self._must_wait, self._is_due = self._is_due, self._is_due, False
        if is_due:
            raise Terminated

    def close(self) -> None:
        """Put the default back; raises Terminated if SIGTERM came in the meantime."""
        if self._is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._is_ours = False
        if self._is_due:
            self._is_due = False
            raise Terminated


def _may_handle(number: int, *, instead_of: object) -> bool:
    """Whether a signal has its default handler, which may be replaced for a while; Python allows it in one thread."""
    return threading.current_thread() is threading.main_thread() and signal.getsignal(number) is instead_of


class WritingInterrupted(KeyboardInterrupt):
    """Ctrl-C has come while files were written; the message says which are there."""


class FilesInTurn:
    """Files that are written one after another, and how the program is ended meanwhile.

        with FilesInTurn(paths) as turn:
            for path in paths:
                with turn.writing(path):
                    ...

    Ctrl-C lets the file at work come to its end and no other one begin; a second one ends that one too. Then
    WritingInterrupted leaves the block. SIGTERM, behind which there is nobody in a hurry, waits for all files; then
    Terminated leaves the block. A handler of somebody else's stays; what it raises ends the file at work.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._written: list[Path] = []
        self._num_interrupts = 0
        self._is_ours = False
        self._termination = Termination()

    def __enter__(self) -> Self:
        """Let both wait."""
        self._termination.watch()
        self._termination.hold()
        if _may_handle(signal.SIGINT, instead_of=signal.default_int_handler):
            signal.signal(signal.SIGINT, self._interrupt)
            self._is_ours = True
        return self

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._num_interrupts += 1
        if self._num_interrupts == 2:  # a third one does not disturb what removes the half-written file
            raise KeyboardInterrupt

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Around the writing of one file; raises KeyboardInterrupt instead if Ctrl-C has come."""
        if self._num_interrupts:
            raise KeyboardInterrupt
        yield
        self._written.append(path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put the handlers back, and raise what has waited."""
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._termination.close()
        if isinstance(error, KeyboardInterrupt) or (error is None and self._num_interrupts):
            raise WritingInterrupted(self._sentence()) from None

    def _sentence(self) -> str:
        missing = [path for path in self._paths if path not in self._written]
        parts = [
            f"{words} {', '.join(path.name for path in paths)}"
            for words, paths in (("wrote", self._written), ("not written:", missing))
            if paths
        ]
        return f"Interrupted while writing: {'; '.join(parts)}."
