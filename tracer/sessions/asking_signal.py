"""A signal by which a user asks a running program for an answer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


class AskingSignal:
    """Notes the signal, for when an answer can be written: the interrupted code may hold a lock that this needs."""

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._came: signal.Signals | None = None

    def start(self) -> Callable[[], object]:
        """Listen, if nobody else does; return a function that ends it."""
        is_main = threading.current_thread() is threading.main_thread()
        if self._number is None or not is_main or signal.getsignal(self._number) is not signal.SIG_DFL:
            return lambda: None
        number = self._number
        signal.signal(number, self._arrived)
        return lambda: signal.signal(number, signal.SIG_DFL)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        self._came = signal.Signals(number)

    def take(self) -> str:
        """Return the name of the signal that has come; empty where none has since the last time."""
        came, self._came = self._came, None
        return came.name if came is not None else ""
