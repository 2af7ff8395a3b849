"""SIGTERM, by which torchrun and batch systems end a program, unwinds it like Ctrl-C, so that results are written."""

from __future__ import annotations

import signal
import threading
from types import FrameType


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
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
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
