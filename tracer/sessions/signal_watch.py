"""End a program by a signal where its main thread does not come to handle it, as within a long call of C++."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final

LIMIT_S: Final = 3.0
"""How long a signal that ends the program may wait for the main thread."""
_LOOK_EVERY_S: Final = 0.1
_OVER: Final = 0  # no signal has this number


class Handling(Enum):
    """How far a signal has come that ends the program."""

    WAITS = "its handler was not called, or the program caught the exception and went on"
    WORKS = "our code is at work, or the exception unwinds the program"
    DONE = "nobody of ours handles it"


class SignalWatch:
    """A thread that signals wake from `start` to `stop`, both called in the main thread: that may be busy.

    It waits in C++ while a backward runs, or for other ranks. A program without handlers would end there at once.

    That the thread wakes is all that a backward needs whose Python code the profiler traces on autograd's own thread:
    CPython 3.11 repeats a traced thread's instruction while a signal is pending, until another thread takes the GIL.
    """

    def __init__(self, handling: Callable[[int], Handling], end: Callable[[int], None]) -> None:
        """Prepare; nothing is switched on.

        Args:
            end: Called in the thread for one that has waited for too long; it ends the program.
        """
        self._handling, self._end = handling, end
        self._reads, self._writes = socket.socketpair()
        self._writes.setblocking(False)
        self._is_over = threading.Event()
        self._before = -1
        self._thread = threading.Thread(target=self._run, name="torch-timeline signals", daemon=True)

    def start(self) -> None:
        """Begin; a descriptor by which the program wakes itself is written to as before."""
        self._before = signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        """End."""
        is_ours = self._put_back()
        self._is_over.set()
        with suppress(BlockingIOError):  # it is full: the thread will wake
            self._writes.send(bytes([_OVER]))
        if self._thread.ident is not None:  # else it could not be started
            self._thread.join()
        if is_ours:  # else the program may still put our descriptor back
            self._reads.close()
            self._writes.close()

    def leave_to_parent(self) -> None:
        """Drop the watch in a forked child, which does not have the thread."""
        self._put_back()

    def _put_back(self) -> bool:
        """Put the program's descriptor back; False where it has set another one meanwhile."""
        found = signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)
        if found != self._writes.fileno():
            signal.set_wakeup_fd(found, warn_on_full_buffer=False)
            return False
        return True

    def _run(self) -> None:
        while _OVER not in (numbers := self._reads.recv(64)):
            if self._before != -1:
                with suppress(OSError):
                    os.write(self._before, numbers)
            for number in set(numbers):
                self._see_to_the_end(number)

    def _see_to_the_end(self, number: int) -> None:
        waits_since = time.monotonic()
        while (handling := self._handling(number)) is not Handling.DONE and not self._is_over.wait(_LOOK_EVERY_S):
            if handling is Handling.WORKS:
                waits_since = time.monotonic()
            elif time.monotonic() - waits_since > LIMIT_S:
                self._end(number)
                return


def end_by(number: int) -> None:
    """End the process as an unhandled signal does, from any thread."""
    ctypes.CDLL(None).signal(number, None)  # SIG_DFL; Python's own way is for the main thread alone
    os.kill(os.getpid(), number)
