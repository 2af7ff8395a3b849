"""Write files one after another, so that a signal leaves none half-written."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tracer.capture import deferred_handlers
from tracer.exporters.screen.next_commands import command_line
from tracer.sessions.termination import SIGNALS, Termination, uninterrupted


class WritingInterrupted(KeyboardInterrupt):
    """Ctrl-C has come while files were written; the message says which are there."""


class FilesInTurn:
    """Files that are written one after another, and how the program is ended meanwhile.

        with FilesInTurn(paths) as turn:
            for path in paths:
                with turn.writing(path):
                    ...

    Ctrl-C lets the file at work come to its end and no other one begin, but for one from which the rest can be made; a
    second one ends that one too. Then WritingInterrupted leaves the block. SIGTERM, behind which there is nobody in a
    hurry, waits for all files, and so does SIGHUP; then Terminated leaves the block. A handler of the program's own is
    called after the last file.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._written: list[Path] = []
        self._keeps_rest: Path | None = None
        self._termination = Termination()

    def __enter__(self) -> Self:
        self._termination.hold()
        self._termination.watch()
        return self

    def keeps_the_rest_in(self, path: Path) -> bool:
        """Return True if one more file may be written after Ctrl-C, from which the unwritten files can be made."""
        if self._termination.num_interrupts < 2 and path not in self._written:
            self._keeps_rest = path
        return self._keeps_rest is not None

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """Around the writing of one file; raises KeyboardInterrupt instead if Ctrl-C has come."""
        if self._termination.num_interrupts and path != self._keeps_rest:
            raise KeyboardInterrupt
        yield
        self._written.append(path)

    @uninterrupted
    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Listen no longer, and raise what has waited."""
        is_interrupted = self._termination.num_interrupts > 0
        due = self._termination.forget()
        try:
            if isinstance(error, KeyboardInterrupt) or (error is None and is_interrupted):
                raise WritingInterrupted(self._sentence()) from None
            if due is not None and (error is None or due != signal.SIGINT):
                SIGNALS.pass_on(due)
        finally:
            deferred_handlers.deliver()

    def _sentence(self) -> str:
        missing = [path for path in self._paths if path not in self._written]
        parts = [
            f"{words} {', '.join(path.name for path in paths)}"
            for words, paths in (("wrote", self._written), ("not written:", missing))
            if paths
        ]
        kept = self._keeps_rest if self._keeps_rest in self._written else None
        rest = f" {command_line('report', kept.parent)} writes these." if kept is not None and missing else ""
        return f"Interrupted while writing: {'; '.join(parts)}.{rest}"
