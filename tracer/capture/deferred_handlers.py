"""The program's own signal handlers wait while our code is at work, so that an exception of theirs reaches the program.

A handler may raise, as one that sets a time limit does, and it runs wherever the main thread happens to be. In the
middle of our code its exception would look like a fault of ours, and would leave a recording half read.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]

_FAULTS = ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGKILL", "SIGSEGV", "SIGSTOP", "SIGSYS", "SIGTRAP")
_NUMBERS = tuple(
    number
    for number in sorted(signal.valid_signals())
    if number < getattr(signal, "SIGRTMIN", 32) and getattr(number, "name", "") not in _FAULTS
)
"""Signals that programs handle. Each is a call in a recorded step: real-time signals and those of a fault are none."""

_held: list[None] = []
"""One entry for each block at work: a signal cannot come between the halves of `append` or `pop`."""
_replaced: dict[int, Handler] = {}
_due: dict[int, Handler] = {}
_never_deferred: list[object] = [signal.default_int_handler]


def never_defer(handler: Handler) -> Handler:
    """Mark a handler of ours that defers by itself."""
    _never_deferred.append(handler)
    return handler


def hold() -> bool:
    """Defer the program's handlers until `release`; no-op that returns False in another thread than the main one."""
    if threading.current_thread() is not threading.main_thread():
        return False
    _held.append(None)
    if len(_held) > 1:
        return True
    try:
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler) and handler is not _arrived and handler not in _never_deferred:
                _replaced[number] = handler
                signal.signal(number, _arrived)
    except BaseException:  # a handler that is not replaced yet has raised
        release()
        raise
    return True


def release() -> None:
    """End one `hold`; the last one puts the handlers back."""
    _held.pop()
    if not _held:
        for number, handler in list(_replaced.items()):
            if signal.getsignal(number) is _arrived:
                signal.signal(number, handler)
            _replaced.pop(number, None)


def deliver() -> None:
    """Call the handlers of signals that have waited, unless they still have to wait."""
    if _due and not _held:
        number = next(iter(_due))
        handler = _due.pop(number)
        try:
            handler(number, _frame_of_program())
        finally:
            deliver()


@contextmanager
def handlers_dropped() -> Iterator[None]:
    """Do not call the program's handlers while the block lasts, nor behind it: the program has ended."""
    is_held = hold()
    try:
        yield
    finally:
        if is_held:
            release()
            _due.clear()


def _arrived(number: int, frame: FrameType | None) -> None:
    """Stand in for a handler; also where one that raised has kept `release` from putting all back."""
    handler = _replaced[number]
    if _held:
        _due.setdefault(number, handler)
    else:
        handler(number, frame)


def _frame_of_program() -> FrameType | None:
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).split(".")[0] in ("tracer", "contextlib"):
        frame = frame.f_back
    return frame
